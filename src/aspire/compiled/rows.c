/* A row on the CPU: its gradient, loss and batches.

   Every row is worked on by itself, samples first: features (B, d), padded to whole units of 64
   bytes, so a row's numbers do not depend on the rows beside it. A vector is as wide as the
   processor's; sums over features are sums over units, so its width changes no byte. REAL is float
   or double. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
#define LANES ((int64_t)(WIDTH / sizeof(REAL)))
#define UNIT ((int64_t)(64 / sizeof(REAL)))
#define MOST 16 /* layers */
#define BLOCK 64 /* samples of a forward pass that are worked on at once */

#ifdef SINGLE
typedef int32_t bits;
#else
typedef int64_t bits;
#endif
typedef REAL vec __attribute__((vector_size(WIDTH), aligned(sizeof(REAL)), may_alias));
typedef bits mask __attribute__((vector_size(WIDTH), aligned(sizeof(REAL)), may_alias));

typedef struct {
    int64_t layers, batch, row; /* row: numbers in a row, p */
    int64_t inputs[MOST], outputs[MOST], bias[MOST], kind[MOST];
    double a[MOST], b[MOST], c[MOST], drop[MOST]; /* of activations, and dropout after them */
    double decay, drop_first; /* dropout of the samples */
    uint64_t seed; /* what the seed alone makes of the keys: `batches._seed_state` */
    const REAL *samples; /* of all sites */
    const int64_t *targets;
} Problem;

static int64_t padded(int64_t n) { return (n + UNIT - 1) / UNIT * UNIT; }

/* ---------------------------------------------------------------- products */

/* C[m][n] = start[n] + sum_k A[m am + k ak] B[k ldb + n], for MR rows and NV vectors of C. */
#define TILE(MR, NV)                                                                              \
    static void tile_##MR##_##NV(int64_t K, const REAL *A, int64_t am, int64_t ak, const REAL *B, \
                                 int64_t ldb, REAL *C, int64_t ldc, const REAL *start) {          \
        vec sum[MR][NV];                                                                          \
        _Pragma("GCC unroll 16") for (int v = 0; v < NV; v++) {                                   \
            vec first = start ? *(const vec *)(start + v * LANES) : (vec){0};                     \
            _Pragma("GCC unroll 16") for (int m = 0; m < MR; m++) sum[m][v] = first;              \
        }                                                                                         \
        for (int64_t k = 0; k < K; k++) {                                                         \
            vec b[NV];                                                                            \
            _Pragma("GCC unroll 16") for (int v = 0; v < NV; v++)                                 \
                b[v] = *(const vec *)(B + k * ldb + v * LANES);                                   \
            _Pragma("GCC unroll 16") for (int m = 0; m < MR; m++) {                               \
                REAL a = A[m * am + k * ak];                                                      \
                _Pragma("GCC unroll 16") for (int v = 0; v < NV; v++) sum[m][v] += a * b[v];      \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 16") for (int m = 0; m < MR; m++)                                     \
            _Pragma("GCC unroll 16") for (int v = 0; v < NV; v++)                                 \
                *(vec *)(C + m * ldc + v * LANES) = sum[m][v];                                    \
    }

#ifdef __AVX512F__
#define WIDE 4
TILE(6, 4)
TILE(4, 4)
TILE(3, 4)
TILE(2, 4)
TILE(1, 4)
TILE(8, 2)
#else
#define WIDE 2
TILE(6, 2)
#endif
TILE(4, 2)
TILE(1, 2)
TILE(8, 1)
TILE(4, 1)
TILE(1, 1)

#define ROWS(MR, NV)                                                                          \
    for (; m + MR <= M; m += MR)                                                              \
        tile_##MR##_##NV(K, A + m * am, am, ak, B + n, ldb, C + m * ldc + n, ldc, start ? start + n : 0);

/* N is a whole number of vectors. */
static void product(int64_t M, int64_t N, int64_t K, const REAL *A, int64_t am, int64_t ak,
                    const REAL *B, int64_t ldb, REAL *C, int64_t ldc, const REAL *start) {
    int64_t n = 0, m;
#if WIDE == 4
    for (; n + 4 * LANES <= N; n += 4 * LANES) {
        m = 0;
        ROWS(6, 4) ROWS(4, 4) ROWS(3, 4) ROWS(2, 4) ROWS(1, 4)
    }
#endif
    for (; n + 2 * LANES <= N; n += 2 * LANES) {
        m = 0;
#if WIDE == 4
        ROWS(8, 2)
#else
        ROWS(6, 2)
#endif
        ROWS(4, 2) ROWS(1, 2)
    }
    for (; n < N; n += LANES) {
        m = 0;
        ROWS(8, 1) ROWS(4, 1) ROWS(1, 1)
    }
}

/* h[k][o] = start[o] + sum_i x[k step + i] W[o in + i] for 4 samples and O outputs: where there are
   few outputs the sums run over vectors of inputs, else most of a vector would be padding. */
#define NARROW(O)                                                                                 \
    static void narrow_##O(int64_t in, const REAL *x, int64_t step, const REAL *W, REAL *h,       \
                           int64_t ldh, const REAL *start) {                                      \
        int64_t whole = in / UNIT * UNIT;                                                         \
        for (int k = 0; k < 4; k++)                                                               \
            for (int o = 0; o < O; o++) h[k * ldh + o] = start[o];                                \
        for (int64_t part = 0; part < UNIT; part += LANES) {                                      \
            vec sum[4][O];                                                                        \
            memset(sum, 0, sizeof sum);                                                           \
            for (int64_t i = part; i < whole; i += UNIT) {                                        \
                vec w[O];                                                                         \
                _Pragma("GCC unroll 4") for (int o = 0; o < O; o++)                               \
                    w[o] = *(const vec *)(W + o * in + i);                                        \
                _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {                             \
                    vec a = *(const vec *)(x + k * step + i);                                     \
                    _Pragma("GCC unroll 4") for (int o = 0; o < O; o++) sum[k][o] += a * w[o];    \
                }                                                                                 \
            }                                                                                     \
            for (int k = 0; k < 4; k++)                                                           \
                for (int o = 0; o < O; o++)                                                       \
                    for (int v = 0; v < LANES; v++) h[k * ldh + o] += sum[k][o][v];               \
        }                                                                                         \
        for (int k = 0; k < 4; k++)                                                               \
            for (int o = 0; o < O; o++)                                                           \
                for (int64_t r = whole; r < in; r++)                                              \
                    h[k * ldh + o] += x[k * step + r] * W[o * in + r];                            \
    }
NARROW(1)
NARROW(2)
NARROW(3)
NARROW(4)
typedef void Narrow(int64_t, const REAL *, int64_t, const REAL *, REAL *, int64_t, const REAL *);
static Narrow *const narrow[] = {0, narrow_1, narrow_2, narrow_3, narrow_4};

static int is_narrow(int64_t in, int64_t out) { return out <= 4 && in >= 4 * UNIT; }

static void positive(REAL *h, int64_t count) { /* h <- max(h, 0); what is no number stays so */
    for (int64_t i = 0; i < count; i += LANES) {
        vec x = *(vec *)(h + i);
        *(mask *)(h + i) = ~(mask)(x < 0) & (mask)x;
    }
}

/* ---------------------------------------------------------------- softmax */

static vec exponential(vec x) {
#ifdef SINGLE
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds to a whole number */
    mask low = (mask)(x < -87.0f);
    x = (vec)(((mask)x & ~low) | ((mask)((vec){0} - 87.0f) & low));
    vec t = x * 1.44269504f + magic;
    mask n = (mask)t - 0x4B400000;
    t -= magic;
    vec r = x - t * 0.693359375f + t * 2.12194440e-4f;
    vec p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (vec)((n + 127) << 23);
#else
    for (int i = 0; i < LANES; i++) x[i] = exp(x[i]);
    return x;
#endif
}

static REAL largest(const REAL *h, int64_t count) {
    REAL most = h[0];
    for (int64_t i = 1; i < count; i++) most = h[i] > most ? h[i] : most;
    return most;
}

/* e <- exp(h - max h), zero where there is only padding; returns the sum. */
static REAL exponentials(const REAL *h, REAL *e, int64_t count) {
    int64_t wide = padded(count);
    REAL most = largest(h, count);
    for (int64_t i = 0; i < wide; i += LANES)
        *(vec *)(e + i) = exponential(*(const vec *)(h + i) - most);
    for (int64_t i = count; i < wide; i++) e[i] = 0;
    REAL sum = 0;
    for (int64_t part = 0; part < UNIT; part += LANES) {
        vec total = *(vec *)(e + part);
        for (int64_t i = part + UNIT; i < wide; i += UNIT) total += *(vec *)(e + i);
        for (int i = 0; i < LANES; i++) sum += total[i];
    }
    return sum;
}

#include "activations.c"

/* ---------------------------------------------------------------- a stack */

typedef struct {
    REAL *turned[MOST]; /* W^T, (inputs, outputs padded) */
    REAL *wide[MOST];   /* W, (outputs, inputs padded) */
    const REAL *flat[MOST]; /* W where it lies in the row that was unfolded last */
    REAL *bias[MOST];
    REAL *h[MOST + 1];  /* features before layer l; the last: outputs */
    REAL *s[MOST + 1];  /* slopes of the loss by them */
    REAL *d[MOST];      /* slopes of what follows layer l, where ReLU alone does not give them */
    REAL *dw, *again, *memory;
    int64_t *index;
} Room;

/* Whether the slopes of what follows a layer are kept; those of ReLU its features tell. */
static int keeps_slopes(const Problem *b, int l) { return b->kind[l] > RELU || b->drop[l] > 0; }

static int64_t room_size(const Problem *b) { /* REALs */
    int64_t size = 0, most = 0, samples = b->batch > BLOCK ? b->batch : BLOCK;
    for (int l = 0; l < b->layers; l++) {
        int64_t in = padded(b->inputs[l]), out = padded(b->outputs[l]);
        size += b->inputs[l] * out + b->outputs[l] * in + out;
        most = b->outputs[l] * in > most ? b->outputs[l] * in : most;
        size += (2 + keeps_slopes(b, l)) * samples * out;
    }
    return padded(size + 2 * samples * padded(b->inputs[0]) + most + b->row);
}

/* A room in memory that was zero when it became one: the padding of features stays zero. */
static void lay_room(const Problem *b, Room *room, REAL *memory, int64_t *index) {
    int64_t at = 0, most = 0, samples = b->batch > BLOCK ? b->batch : BLOCK;
    room->memory = memory, room->index = index;
#define TAKE(place, count) (place) = memory + at, at += (count)
    TAKE(room->h[0], samples * padded(b->inputs[0]));
    TAKE(room->s[0], samples * padded(b->inputs[0]));
    for (int l = 0; l < b->layers; l++) {
        int64_t in = padded(b->inputs[l]), out = padded(b->outputs[l]);
        TAKE(room->turned[l], b->inputs[l] * out);
        TAKE(room->wide[l], b->outputs[l] * in);
        TAKE(room->bias[l], out);
        TAKE(room->h[l + 1], samples * out);
        TAKE(room->s[l + 1], samples * out);
        TAKE(room->d[l], keeps_slopes(b, l) ? samples * out : 0);
        most = b->outputs[l] * in > most ? b->outputs[l] * in : most;
    }
    TAKE(room->dw, most);
    TAKE(room->again, b->row);
}

static void unfold(const Problem *b, const REAL *w, Room *room, int both) {
    for (int l = 0; l < b->layers; l++) {
        int64_t in = b->inputs[l], out = b->outputs[l], wide = padded(in), tall = padded(out);
        room->flat[l] = w;
        for (int64_t i = 0; i < in; i++)
            for (int64_t o = 0; o < out; o++) room->turned[l][i * tall + o] = w[o * in + i];
        if (both && l)
            for (int64_t o = 0; o < out; o++)
                memcpy(room->wide[l] + o * wide, w + o * in, (size_t)in * sizeof(REAL));
        w += in * out;
        if (b->bias[l]) {
            memcpy(room->bias[l], w, (size_t)out * sizeof(REAL));
            w += out;
        }
    }
}

/* Where a batch's samples are one part of it: `from` is the number of the first, of `whole`. */
typedef struct {
    const uint32_t *key; /* of the row's dropout */
    int64_t from, whole;
} Drawn;

/* f(a) of layer l, and in training, where dropout is `drawn`, the slopes of it. */
static void follow(const Problem *b, Room *room, int l, int64_t count, const Drawn *drawn) {
    int64_t width = b->outputs[l], step = padded(width);
    REAL *h = room->h[l + 1], *slopes = drawn ? room->d[l] : 0;
    Activation f = {b->kind[l], b->a[l], b->b[l], b->c[l], b->drop[l]};
    activate(&f, h, slopes, count * step);
    if (!drawn || !f.drop) return;
    int64_t first = drawn->whole * b->inputs[0];
    for (int i = 0; i < l; i++) first += drawn->whole * b->outputs[i];
    first += drawn->from * width;
    drop_out(f.drop, drawn->key, (uint32_t)first, count, width, step, h, slopes);
}

/* `drawn`: in training, where slopes are kept and dropout drops; null: neither. */
static void forward(const Problem *b, Room *room, int64_t count, const REAL *x, int64_t step,
                    const Drawn *drawn) {
    const REAL *below = x;
    for (int l = 0; l < b->layers; l++) {
        int64_t in = b->inputs[l], out = padded(b->outputs[l]);
        REAL *above = room->h[l + 1];
        const REAL *start = room->bias[l];
        if (is_narrow(in, b->outputs[l]) && count >= 4) {
            Narrow *four = narrow[b->outputs[l]];
            for (int64_t k = 0; k < count; k += 4) {
                int64_t at = k + 4 <= count ? k : count - 4; /* some again rather than fewer */
                four(in, below + at * step, step, room->flat[l], above + at * out, out, start);
            }
        } else
            product(count, out, in, below, step, 1, room->turned[l], out, above, out, start);
        if (keeps_slopes(b, l))
            follow(b, room, l, count, drawn);
        else if (b->kind[l])
            positive(above, count * out);
        below = above;
        step = out;
    }
}

/* The gradient of one row's mean cross-entropy on the samples at `index`. */
static void gradient(const Problem *b, const REAL *w, const int64_t *index, REAL *g, Room *room,
                     const Drawn *drawn) {
    int64_t B = b->batch, L = b->layers, in = b->inputs[0], wide = padded(in);
    unfold(b, w, room, 1);
    for (int64_t k = 0; k < B; k++)
        memcpy(room->h[0] + k * wide, b->samples + index[k] * in, (size_t)in * sizeof(REAL));
    if (b->drop_first)
        drop_out(b->drop_first, drawn->key, (uint32_t)(drawn->from * in), B, in, wide, room->h[0], 0);
    forward(b, room, B, room->h[0], wide, drawn);
    int64_t classes = b->outputs[L - 1], tall = padded(classes);
    for (int64_t k = 0; k < B; k++) {
        REAL *s = room->s[L] + k * tall;
        REAL share = 1 / (exponentials(room->h[L] + k * tall, s, classes) * (REAL)B);
        for (int64_t i = 0; i < tall; i += LANES) *(vec *)(s + i) *= share;
        s[b->targets[index[k]]] -= 1 / (REAL)B;
    }
    REAL *end = g + b->row;
    for (int64_t l = L - 1; l >= 0; l--) {
        int64_t i = b->inputs[l], o = b->outputs[l], ip = padded(i), op = padded(o);
        REAL *s = room->s[l + 1], *h = room->h[l];
        if (keeps_slopes(b, (int)l))
            for (int64_t k = 0; k < B * op; k += LANES)
                *(vec *)(s + k) *= *(vec *)(room->d[l] + k);
        else if (b->kind[l])
            for (int64_t k = 0; k < B * op; k += LANES)
                *(mask *)(s + k) &= ~(mask)(*(vec *)(room->h[l + 1] + k) <= 0);
        if (b->bias[l]) {
            end -= o;
            for (int64_t v = 0; v < o; v += LANES) {
                vec sum = *(vec *)(s + v);
                for (int64_t k = 1; k < B; k++) sum += *(vec *)(s + k * op + v);
                memcpy(end + v, &sum, (size_t)(o - v < LANES ? o - v : LANES) * sizeof(REAL));
            }
        }
        end -= o * i;
        if (i == ip)
            product(o, ip, B, s, 1, op, h, ip, end, ip, 0);
        else {
            product(o, ip, B, s, 1, op, h, ip, room->dw, ip, 0);
            for (int64_t k = 0; k < o; k++)
                memcpy(end + k * i, room->dw + k * ip, (size_t)i * sizeof(REAL));
        }
        if (l) product(B, ip, o, s, op, 1, room->wide[l], ip, room->s[l], ip, 0);
    }
    if (b->decay)
        for (int64_t k = 0; k < b->row; k++) g[k] += (REAL)b->decay * w[k];
}

/* max_c h_kc and sum_c exp(h_kc - max) of BLOCK samples, which lie side by side in a vector. */
static void log_sums(const REAL *h, int64_t classes, REAL *turned, REAL *most, REAL *sums) {
    int64_t tall = padded(classes);
    for (int64_t k = 0; k < BLOCK; k++)
        for (int64_t c = 0; c < classes; c++) turned[c * BLOCK + k] = h[k * tall + c];
    for (int64_t k = 0; k < BLOCK; k += LANES) {
        vec top = *(vec *)(turned + k), sum = {0};
        for (int64_t c = 1; c < classes; c++) {
            vec x = *(vec *)(turned + c * BLOCK + k);
            mask above = (mask)(x > top);
            top = (vec)(((mask)x & above) | ((mask)top & ~above));
        }
        for (int64_t c = 0; c < classes; c++)
            sum += exponential(*(vec *)(turned + c * BLOCK + k) - top);
        *(vec *)(most + k) = top;
        *(vec *)(sums + k) = sum;
    }
}

static int64_t highest(const REAL *h, int64_t count) { /* the first of them; else what is no number */
    int64_t at = 0;
    for (int64_t i = 1; i < count; i++)
        if (h[i] > h[at] || (h[i] != h[i] && h[at] == h[at])) at = i;
    return at;
}

/* Mean cross-entropy of one row over n samples, plus decay/2 |w|^2, and unless `right` is null how
   many of them it gets right; no number where a target is no class. */
static double judge(const Problem *b, const REAL *w, const REAL *x, const int64_t *y, int64_t n,
                    int64_t *right, Room *room) {
    int64_t in = b->inputs[0], L = b->layers;
    int64_t classes = b->outputs[L - 1], tall = padded(classes);
    double total = 0, power = 1;
    REAL most[BLOCK], sums[BLOCK];
    unfold(b, w, room, 0);
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t count = n - first < BLOCK ? n - first : BLOCK;
        forward(b, room, count, x + first * in, in, 0);
        log_sums(room->h[L], classes, room->s[L], most, sums);
        for (int64_t k = 0; k < count; k++) {
            const REAL *h = room->h[L] + k * tall;
            int64_t c = y[first + k];
            power *= (double)sums[k]; /* between 1 and the classes: one log for many */
            total += (double)most[k] - (c >= 0 && c < classes ? (double)h[c] : NAN);
            if (power > 1e100) total += log(power), power = 1;
            if (right) *right += highest(h, classes) == c;
        }
    }
    total = (total + log(power)) / (double)n;
    double square = 0;
    if (b->decay)
        for (int64_t k = 0; k < b->row; k++) square += (double)w[k] * (double)w[k];
    return total + 0.5 * b->decay * square;
}

/* ---------------------------------------------------------------- batches */

/* `count` indices of batch n of worker j from number `from` on, as `batches.rows`. */
static void draw_some(uint64_t seed, int64_t j, int64_t n, int64_t size, int64_t start,
                      int64_t from, int64_t count, int64_t *index) {
    const uint32_t weyl = 0x9E3779B9u, early = (uint32_t)seed;
    uint32_t words[4] = {(uint32_t)j, (uint32_t)n, (uint32_t)(n >> 32), 0}, state = early;
    for (int i = 0; i < 4; i++) state = mix((state + weyl) ^ mix(words[i]));
    uint32_t first = mix(state + early), second = mix(state ^ 0xB7E15162u);
    for (int64_t c = 0; c < count; c++) {
        uint32_t hash = mix(mix((uint32_t)(from + c) * weyl + first) ^ second);
        index[c] = (int64_t)((hash * (uint64_t)size) >> 32);
    }
    for (int64_t c = 0; c < count; c++) index[c] += start;
}
