/* Activations and dropout of a row's features; see rows.c.

   `activate` replaces a by f(a) and, where `slopes` is given, keeps f'(a) there for the chain rule.
   A kind is as in activations.py, and so are its numbers a, b and c. */

enum { IDENTITY, RELU, LEAKY, ELU, GELU, GELU_TANH, SILU, TANH, SIGMOID, SOFTPLUS, HARDTANH };

typedef struct {
    int64_t kind;
    double a, b, c, drop;
} Activation;

static vec chosen(mask which, vec yes, vec no) {
    return (vec)(((mask)yes & which) | ((mask)no & ~which));
}

static vec size_of(vec x) { return chosen((mask)(x < 0), -x, x); }

static vec sigmoid(vec x) {
    vec e = exponential(-size_of(x)), share = 1 / (1 + e);
    return chosen((mask)(x < 0), e * share, share);
}

static vec tanh_of(vec x) {
    vec e = exponential(-2 * size_of(x)), y = (1 - e) / (1 + e);
    return chosen((mask)(x < 0), -y, y);
}

static vec log_of_1_plus(vec x) { /* of numbers from 0 to 1 */
#ifdef SINGLE
    vec s = x / (2 + x), q = s * s, sum = q * (1.0f / 15) + 1.0f / 13; /* 2 artanh(s) */
    for (int k = 11; k > 0; k -= 2) sum = sum * q + 1.0f / (float)k;
    return 2 * s * sum;
#else
    for (int i = 0; i < LANES; i++) x[i] = log1p(x[i]);
    return x;
#endif
}

/* Phi(x) of the normal distribution; `e` is exp(-x^2/2). */
static vec normal(vec x, vec e) {
#ifdef SINGLE
    /* Abramowitz and Stegun, 7.1.26: to 1.5e-7 */
    vec t = 1 / (1 + 0.3275911f * 0.70710678f * size_of(x));
    vec p = 1.061405429f * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vec tail = 0.5f * p * t * e;
    return chosen((mask)(x < 0), tail, 1 - tail);
#else
    (void)e;
    for (int i = 0; i < LANES; i++) x[i] = 0.5 * erfc(-x[i] * M_SQRT1_2);
    return x;
#endif
}

/* f(x), with f'(x) in *slope. */
static inline vec activated(const Activation *f, vec x, vec *slope) {
    const vec zero = {0}, one = zero + 1;
    REAL a = (REAL)f->a, b = (REAL)f->b, c = (REAL)f->c;
    vec e, y;
    switch (f->kind) {
    case RELU:
        *slope = chosen((mask)(x > 0), one, zero);
        return chosen((mask)(x < 0), zero, x);
    case LEAKY: /* x, or a x below zero */
        *slope = chosen((mask)(x > 0), one, zero + a);
        return x * *slope;
    case ELU: /* b x, or a (exp(c x) - 1) below zero */
        e = exponential(c * chosen((mask)(x > 0), zero, x));
        *slope = chosen((mask)(x > 0), zero + b, a * c * e);
        return chosen((mask)(x > 0), b * x, a * (e - 1));
    case GELU: /* x Phi(x) */
        e = exponential(-(REAL)0.5 * x * x);
        y = normal(x, e);
        *slope = y + x * e * (REAL)0.3989422804014327;
        return x * y;
    case GELU_TANH: /* x/2 (1 + tanh(k (x + 0.044715 x^3))) = x sigmoid(2 k (x + 0.044715 x^3)) */
        e = (REAL)1.5957691216057308 * x * (1 + (REAL)0.044715 * x * x);
        y = sigmoid(e);
        *slope = y + x * y * (1 - y) * (REAL)1.5957691216057308 * (1 + (REAL)0.134145 * x * x);
        return x * y;
    case SILU:
        y = sigmoid(x);
        *slope = y * (1 + x * (1 - y));
        return x * y;
    case TANH:
        y = tanh_of(x);
        *slope = 1 - y * y;
        return y;
    case SIGMOID:
        y = sigmoid(x);
        *slope = y * (1 - y);
        return y;
    case SOFTPLUS: { /* log(1 + exp(a x)) / a, or x where a x is above b */
        mask high = (mask)(a * x > b);
        y = a * x;
        e = log_of_1_plus(exponential(-size_of(y)));
        *slope = chosen(high, one, sigmoid(y));
        return chosen(high, x, (chosen((mask)(y < 0), zero, y) + e) / a);
    }
    case HARDTANH: /* x, kept between a and b */
        *slope = chosen((mask)(x > a) & (mask)(x < b), one, zero);
        y = chosen((mask)(x < a), zero + a, x);
        return chosen((mask)(y > b), zero + b, y);
    default:
        *slope = one;
        return x;
    }
}

#define ACTIVATE(KIND)                                                                 \
    case KIND: {                                                                       \
        Activation g = *f;                                                             \
        g.kind = KIND; /* known when this is compiled, so the switch is outside the loop */ \
        for (int64_t i = 0; i < count; i += LANES) {                                   \
            vec slope;                                                                 \
            *(vec *)(h + i) = activated(&g, *(vec *)(h + i), &slope);                  \
            if (slopes) *(vec *)(slopes + i) = slope;                                  \
        }                                                                              \
        return;                                                                        \
    }

static void activate(const Activation *f, REAL *h, REAL *slopes, int64_t count) {
    switch (f->kind) {
        ACTIVATE(IDENTITY)
        ACTIVATE(RELU)
        ACTIVATE(LEAKY)
        ACTIVATE(ELU)
        ACTIVATE(GELU)
        ACTIVATE(GELU_TANH)
        ACTIVATE(SILU)
        ACTIVATE(TANH)
        ACTIVATE(SIGMOID)
        ACTIVATE(SOFTPLUS)
        ACTIVATE(HARDTANH)
    }
}

static uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* Dropout of (count, width) features that lie `step` apart, as `batches.kept`: feature o of sample k
   has the number first + k width + o in the stream of `key`. Slopes, if any, are scaled as well. */
static void drop_out(double share, const uint32_t *key, uint32_t first, int64_t count, int64_t width,
                     int64_t step, REAL *h, REAL *slopes) {
    uint64_t least = (uint64_t)(share * 4294967296.0);
    REAL scale = share < 1 ? (REAL)(1 / (1 - share)) : 0;
    for (int64_t k = 0; k < count; k++, first += (uint32_t)width)
        for (int64_t o = 0; o < width; o++) {
            uint32_t hash = mix(mix((first + (uint32_t)o) * 0x9E3779B9u + key[0]) ^ key[1]);
            REAL factor = hash >= least ? scale : 0;
            h[k * step + o] *= factor;
            if (slopes) slopes[k * step + o] *= factor;
        }
}
