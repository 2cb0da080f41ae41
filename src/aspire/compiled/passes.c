/* (11), (12) with (15), and what reports imply of their gradients, in one pass over the columns each.

   Rows are float32, what runs over all workers is float64. Every operation is the one that torch
   does, in its order: its kernels form a + b c with one rounding, and so does fma. The compiler may
   join nothing else (-ffp-contract=off). `aspire_vectors` compares bytes with torch's on a trial
   before it uses anything from here. */

#include <math.h>
#include <stdint.h>

#define COLUMNS 1024 /* whose squares are added up first; as in core/pull.py */
#define SHORT 64     /* columns at a time: vectors that begin alike share few lines of the cache */

typedef struct {
    int64_t p, reports;
    const int64_t *workers;        /* (S,) */
    const float *told;             /* (S, p) the reported w_j */
    float *w, *phi, *v;            /* (N, p), (N, p), (S, p) */
    double *z, *average, *sum_w, *sum_phi;
    double many, kappa, eta, a1, share; /* many = kappa n */
    float c2, rho2, a4, k;              /* k = kappa */
    const double *push;                 /* (S,) what v_j has of the worker's move; 0: nothing */
} Step;

const int64_t structure_size = sizeof(Step);

static inline double box(double x, double most) { return x < -most ? -most : x > most ? most : x; }

static inline float boxf(float x, float most) { return x < -most ? -most : x > most ? most : x; }

/* (12), the average, and z in the rows' precision, in n columns. */
static void centre(const Step *s, int64_t at, int64_t n, const double *restrict change,
                   float *restrict brief) {
    double *restrict z = s->z + at, *restrict mean = s->average + at;
    double *restrict sum_w = s->sum_w + at;
    const double *restrict sum_phi = s->sum_phi + at;
    double many = s->many, kappa = s->kappa, eta = s->eta, a1 = s->a1, share = s->share;
    for (int64_t i = 0; i < n; i++) {
        sum_w[i] += change[i];
        double slope = fma(sum_w[i], -kappa, fma(z[i], many, sum_phi[i]));
        z[i] = box(fma(slope, -eta, z[i]), a1);
        brief[i] = (float)z[i];
    }
    if (share >= 1)
        for (int64_t i = 0; i < n; i++) mean[i] = z[i];
    else if (share < 0.5)
        for (int64_t i = 0; i < n; i++) mean[i] = fma(share, z[i] - mean[i], mean[i]);
    else
        for (int64_t i = 0; i < n; i++) mean[i] = fma(share - 1, z[i] - mean[i], z[i]);
}

/* w_j as reported, (12), (15), the average and v_j = phi_j + kappa z, with what pushes it on. */
void move(const Step *s) {
    int64_t p = s->p;
    float c2 = s->c2, rho2 = s->rho2, a4 = s->a4, k = s->k;
    for (int64_t at = 0; at < p; at += SHORT) {
        int64_t n = p - at < SHORT ? p - at : SHORT;
        double change[SHORT];
        float brief[SHORT];
        for (int64_t r = 0; r < s->reports; r++) {
            const float *restrict told = s->told + r * p + at;
            float *restrict w = s->w + s->workers[r] * p + at, *restrict v = s->v + r * p + at;
            if (s->push)
                for (int64_t i = 0; i < n; i++) v[i] = told[i] - w[i];
            for (int64_t i = 0; i < n; i++) {
                double d = (double)(told[i] - w[i]);
                change[i] = r ? change[i] + d : d;
                w[i] = told[i];
            }
        }
        centre(s, at, n, change, brief);
        for (int64_t r = 0; r < s->reports; r++) {
            const float *restrict told = s->told + r * p + at;
            float *restrict phi = s->phi + s->workers[r] * p + at, *restrict v = s->v + r * p + at;
            float push = s->push ? (float)s->push[r] : 0, more[SHORT];
            for (int64_t i = 0; i < n; i++) {
                float slope = fmaf(phi[i], -c2, brief[i] - told[i]);
                float new = boxf(fmaf(slope, rho2, phi[i]), a4);
                double d = (double)(new - phi[i]);
                change[i] = r ? change[i] + d : d;
                phi[i] = new;
                more[i] = fmaf(brief[i], k, new);
            }
            if (s->push)
                for (int64_t i = 0; i < n; i++) v[i] = fmaf(v[i], push, more[i]);
            else
                for (int64_t i = 0; i < n; i++) v[i] = more[i];
        }
        double *restrict sum_phi = s->sum_phi + at;
        for (int64_t i = 0; i < n; i++) sum_phi[i] += change[i];
    }
}

/* As `pull.squares` of `pull.implied`: (S,). `steps` is K, the other numbers are of all workers. */
void implied(int64_t p, int64_t reports, const int64_t *workers, const float *rows,
             const float *w_rows, const float *phi_rows, const double *z, const double *kappa,
             const double *rate, const double *weight, float steps, double *squares) {
    for (int64_t r = 0; r < reports; r++) {
        int64_t j = workers[r];
        float k = (float)kappa[j], a = (float)rate[j] * steps, pi = (float)weight[j];
        squares[r] = 0;
        for (int64_t at = 0; at < p; at += COLUMNS) {
            int64_t n = p - at < COLUMNS ? p - at : COLUMNS;
            const float *restrict told = rows + r * p + at;
            const float *restrict w = w_rows + j * p + at, *restrict phi = phi_rows + j * p + at;
            double square[COLUMNS];
            for (int64_t i = 0; i < n; i++) {
                float g = (w[i] - told[i]) / a + phi[i];
                g = fmaf(-(w[i] - (float)z[at + i]), k, g) / pi;
                square[i] = (double)g * (double)g;
            }
            for (int64_t i = n; i < COLUMNS; i++) square[i] = 0;
            for (int64_t half = COLUMNS / 2; half; half /= 2)
                for (int64_t i = 0; i < half; i++) square[i] += square[i + half];
            squares[r] += square[0];
        }
    }
}

/* (11): out = w - a_w (pi g + kappa w - v), within a1. */
void worker(int64_t p, const float *restrict w, const float *restrict g, const float *restrict v,
            float *restrict out, float pi, float kappa, float rate, float a1) {
    for (int64_t i = 0; i < p; i++) {
        float slope = fmaf(w[i], kappa, g[i] * pi) - v[i];
        out[i] = boxf(fmaf(-slope, rate, w[i]), a1);
    }
}
