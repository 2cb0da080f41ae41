/* Whole asynchronous steps on the CPU: (11) to (15) on tables of rows.

   The caller's thread takes the master's steps; the tasks that they hand out are worked on by it or
   by helpers, whoever comes first. A row does not depend on other rows, so nothing depends on who
   did it. */

#include "rows.c"

#include <float.h>
#include <pthread.h>
#include <sched.h>

#define PLANES 2048
#define COLUMNS 512 /* of a step's vectors: what it needs of them stays in the cache */
#define HELPERS 64
#define PANEL 32 /* as in core/pull.py */
#define LARGE 1e6 /* as in core/equations.py */
#define LONGEST 1e30 /* as in core/pull.py */
#define LARGEST 1e12 /* as in protocol.py */

enum { DONE, WAITING, RUNNING };

/* `core.pull`; a bound of 0 is none. */
typedef struct {
    double pull, coordinate, fresh;
    int64_t t, panel, memory, refresh, known; /* t of the plan's first step; is `common` known */
    const double *upper;              /* (N,) u_j */
    double *length, *weight;          /* (N,) */
    int64_t *seat, *seen;             /* (N,), (panel,) */
    REAL *rows, *common, *implied;    /* (panel, p), (p,), (p,) */
    int64_t *far, *moved, *backs;     /* (N,) of the last report; how often each was put back */
} Bounds;

typedef struct {
    Problem problem;
    int64_t n, quorum, planes;
    double kappa, eta, rho2, settle, stride, momentum, overshoot, steeper, ease_off;
    double usual; /* the median L_j of the probes: no L_j is below its own, so no median below this */
    double most_loss;
    /* (N, p): results in flight, gradients at them on the next batch, last reports, multipliers */
    REAL *flight, *g, *w, *phi;
    double *z, *average, *sum_w, *sum_phi; /* (p,) */
    /* (N,): losses known, losses in flight, L_j known, what checks found (-1: none), prior, L_j of
       the probe */
    double *f, *told, *curvature, *revealed, *prior, *first;
    double *pi, *rate, *coupling;           /* (N,) of the tasks in flight */
    double *P, *lam, *before, *F, *height;  /* (PLANES, N), (PLANES,) and one number */
    int64_t *draws, *checked, *reports, *digests; /* (N,) of the tasks in flight */
    int32_t *state;                         /* (N,) of the work on them */
    /* the plan of a block: (steps, S), its numbers (steps, 4), and the digests that it gives */
    const int64_t *plan_workers, *plan_draws, *plan_checks, *plan_losses;
    const double *numbers;
    int64_t *found;
    /* tasks that wait for somebody, those of this plan first; each is there at least once */
    int64_t *queue, taken, handed, stop;
    /* liars: what a site's loss and gradient are multiplied with, (N,); whose model is false (-1:
       nobody's), what it says, and the row that it has, before and after its step */
    const double *loud, *turn;
    int64_t liar;
    double model;
    const REAL *plus;
    REAL *start, *own;
    Bounds bounds;
} Run;

/* ---------------------------------------------------------------- a worker */

static REAL *state_of(Run *run, int64_t j) { /* w_j as the worker has it, which it may not say */
    return j == run->liar ? run->own : run->flight + j * run->problem.row;
}

/* Worker j's gradient at w on its batch n, as it uses it. */
static void slope(Run *run, int64_t j, int64_t n, const REAL *w, REAL *g, Room *room) {
    draw(&run->problem, j, n, room->index);
    gradient(&run->problem, w, room->index, g, room, 0);
    if (run->turn[j] != 1)
        for (int64_t i = 0; i < run->problem.row; i++) g[i] *= (REAL)run->turn[j];
}

/* As `methods.worker.checked_step`: on the batch of the step itself. */
static void check(Run *run, int64_t j, Room *room) {
    const Problem *b = &run->problem;
    REAL *w = state_of(run, j), *again = room->again;
    const REAL *held = j == run->liar ? run->start : run->w + j * b->row;
    const REAL *g = run->g + j * b->row;
    double length = 0, bend = 0;
    slope(run, j, run->draws[j], w, again, room);
    for (int64_t i = 0; i < b->row; i++) {
        double d = (double)(w[i] - held[i]);
        length += d * d;
        bend += (double)(again[i] - g[i]) * d;
    }
    run->revealed[j] = 0;
    if (!(length > 0 && run->pi[j] > 0)) return;
    bend /= length;
    if (bend > 0) run->revealed[j] = bend;
    double far = run->rate[j] * (run->pi[j] * bend + run->coupling[j]);
    if (!(far > run->overshoot)) return;
    for (int64_t i = 0; i < b->row; i++) w[i] = held[i] + (w[i] - held[i]) / (REAL)far;
}

/* The rest of a task, and the gradient of the one after it, which needs nothing else; under a
   coordinate bound it waits for what that makes of w_j, which is nearly always something. */
static void work(Run *run, int64_t j, Room *room) {
    const Problem *b = &run->problem;
    REAL *w = state_of(run, j), *said = run->flight + j * b->row;
    if (run->checked[j]) check(run, j, room);
    if (run->reports[j]) run->told[j] = run->loud[j] * mean_loss(b, w, j, room);
    if (!run->bounds.coordinate) slope(run, j, run->draws[j] + 1, w, run->g + j * b->row, room);
    if (j == run->liar)
        for (int64_t i = 0; i < b->row; i++)
            said[i] = (REAL)run->model * w[i] + (run->plus ? run->plus[i] : 0);
    run->digests[j] = digest(b, said, run->told[j], run->revealed[j]);
    __atomic_store_n(run->state + j, DONE, __ATOMIC_RELEASE);
}

static int begin(Run *run, int64_t j) { /* whether nobody else has begun */
    int32_t waiting = WAITING;
    return __atomic_compare_exchange_n(run->state + j, &waiting, RUNNING, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

/* One task of the queue; 0: none waits. */
static int help(Run *run, Room *room) {
    for (;;) {
        int64_t at = __atomic_load_n(&run->taken, __ATOMIC_ACQUIRE);
        if (at >= __atomic_load_n(&run->handed, __ATOMIC_ACQUIRE)) return 0;
        if (!__atomic_compare_exchange_n(&run->taken, &at, at + 1, 0, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE))
            continue;
        int64_t j = run->queue[at];
        if (begin(run, j)) {
            work(run, j, room);
            return 1;
        }
    }
}

static void *helper(void *given) {
    Run *run = given;
    Room room;
    if (make_room(&run->problem, &room))
        while (!__atomic_load_n(&run->stop, __ATOMIC_ACQUIRE))
            if (!help(run, &room)) sched_yield();
    leave_room(&room);
    return 0;
}

static void need(Run *run, int64_t j, Room *room) {
    while (__atomic_load_n(run->state + j, __ATOMIC_ACQUIRE) != DONE)
        if (begin(run, j))
            work(run, j, room);
        else if (!help(run, room))
            sched_yield();
}

/* ---------------------------------------------------------------- the master */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *x, int64_t n) {
    double *sorted = malloc((size_t)n * sizeof(double));
    if (!sorted) return x[0];
    memcpy(sorted, x, (size_t)n * sizeof(double));
    qsort(sorted, (size_t)n, sizeof(double), ascending);
    double found = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    free(sorted);
    return found;
}

/* As `schedules.learn`: first where the step was fine, then the others in their order. */
static void learn(Run *run, const int64_t *Q) {
    int64_t S = run->quorum, steeper = 0;
    for (int64_t k = 0; k < S; k++) {
        double *known = run->curvature + Q[k], found = run->revealed[Q[k]];
        if (found < 0) continue;
        if (found > run->steeper * *known) {
            steeper++;
            continue;
        }
        double least = run->first[Q[k]];
        *known = run->ease_off * *known > least ? run->ease_off * *known : least;
        run->revealed[Q[k]] = -1;
    }
    for (int64_t k = 0; steeper && k < S; k++) {
        double *known = run->curvature + Q[k], found = run->revealed[Q[k]];
        if (found < 0) continue;
        if (found > 10 * run->usual) {
            double most = 10 * median(run->curvature, run->n);
            if (found > most) found = most;
        }
        if (found > *known) *known = found;
    }
}

/* (14) on the simplex: lam <- project(lam + rho1 (F - c1 lam)), h = threshold / rho1. Large
   numbers are shifted, as in `equations.project_simplex`. */
static void dual(Run *run, double c1, double rho1) {
    int64_t L = run->planes;
    double y[PLANES], sorted[PLANES], total = -1, threshold = -INFINITY;
    double top = -INFINITY, size = 0;
    for (int64_t l = 0; l < L; l++) {
        y[l] = run->lam[l] + rho1 * (run->F[l] - c1 * run->lam[l]);
        top = fmax(top, y[l]);
        size = fmax(size, fabs(y[l]));
    }
    double shift = L > 1 && size > LARGE ? top : 0;
    for (int64_t l = 0; l < L; l++) sorted[l] = y[l] = shift ? fmax(y[l] - shift, -2) : y[l];
    qsort(sorted, (size_t)L, sizeof(double), ascending);
    for (int64_t k = 1; k <= L; k++) {
        total += sorted[L - k];
        if (L > 1 && sorted[L - k] <= total / (double)k) break;
        threshold = total / (double)k;
    }
    for (int64_t l = 0; l < L; l++) {
        run->before[l] = run->lam[l];
        run->lam[l] = L == 1 ? 1 : y[l] > threshold ? y[l] - threshold : 0;
    }
    *run->height = (threshold + shift) / rho1;
}

/* ---------------------------------------------------------------- bounds on the pull */

static REAL clipped(REAL x, REAL most) { return x > most ? most : x < -most ? -most : x; }

/* `pull.implied`: what worker j's report says of its gradient; returns its length. */
static double implied(Run *run, int64_t j, REAL *g) {
    int64_t p = run->problem.row;
    const REAL *after = run->flight + j * p, *before = run->w + j * p, *phi = run->phi + j * p;
    REAL kappa = (REAL)run->coupling[j], rate = (REAL)run->rate[j];
    REAL weight = (REAL)run->bounds.weight[j];
    double square = 0;
    for (int64_t i = 0; i < p; i++) {
        REAL pulled = (before[i] - after[i]) / rate + phi[i];
        g[i] = (pulled - kappa * (before[i] - (REAL)run->z[i])) / weight;
        square += (double)g[i] * (double)g[i];
    }
    return sqrt(square);
}

/* `pull.learn` for one worker. */
static void remember(Bounds *b, int64_t j, const REAL *g, int64_t p) {
    if (b->seat[j] < 0) {
        int64_t free = 0;
        while (free < b->panel && b->seen[free]) free++;
        if (free == b->panel) return;
        b->seat[j] = free;
    }
    int64_t count = ++b->seen[b->seat[j]];
    REAL share = (REAL)(1.0 / (double)(count < b->memory ? count : b->memory));
    REAL *row = b->rows + b->seat[j] * p;
    for (int64_t i = 0; i < p; i++) row[i] += share * (g[i] - row[i]);
}

/* `pull.refresh`: the second largest over the workers that are known, in every coordinate. */
static void refresh(Bounds *b, int64_t n, int64_t p) {
    int64_t at[PANEL], count = 0;
    for (int64_t k = 0; k < b->panel; k++)
        if (b->seen[k]) at[count++] = k;
    if (2 * count < (n < PANEL ? n : PANEL) || count < 3) return;
    for (int64_t i = 0; i < p; i++) {
        REAL first = 0, second = 0;
        for (int64_t k = 0; k < count; k++) {
            REAL x = b->rows[at[k] * p + i];
            x = x < 0 ? -x : x;
            second = x > first ? first : x > second ? x : second;
            first = x > first ? x : first;
        }
        b->common[i] = second;
    }
    b->known = 1;
}

/* As `aspire_step.held_back`: the reports of Q become what the bounds leave of them. */
static void hold_back(Run *run, const int64_t *Q, int64_t t) {
    Bounds *b = &run->bounds;
    int64_t p = run->problem.row, S = run->quorum;
    double most = b->pull ? b->pull * median(b->length, run->n) : INFINITY;
    for (int64_t k = 0; k < S; k++) {
        double length = implied(run, Q[k], b->implied);
        b->far[Q[k]] = length > most;
        if (b->pull) b->length[Q[k]] += b->fresh * (fmin(length, LONGEST) - b->length[Q[k]]);
        if (b->coordinate) remember(b, Q[k], b->implied, p);
    }
    if (b->coordinate && (t % b->refresh == 0 || !b->known)) refresh(b, run->n, p);
    for (int64_t k = 0; k < S; k++) {
        int64_t j = Q[k], moved = b->far[j];
        REAL *w = run->flight + j * p, limit = (REAL)(b->coordinate * b->upper[j]);
        REAL kappa = (REAL)run->kappa;
        if (b->far[j]) {
            for (int64_t i = 0; i < p; i++) w[i] = (REAL)run->z[i];
            b->backs[j]++;
        } else if (b->coordinate && b->known)
            for (int64_t i = 0; i < p; i++) {
                REAL z = (REAL)run->z[i], new = z + clipped(w[i] - z, limit * b->common[i] / kappa);
                moved |= new != w[i];
                w[i] = new;
            }
        b->moved[j] = moved;
        if (moved && j == run->liar) memcpy(run->own, w, (size_t)p * sizeof(REAL));
    }
}

/* As `aspire_state.seen`; not a number where the event-by-event path refuses the report. */
static double seen(const Run *run, double loss) {
    if (!(fabs(loss) <= LARGEST)) return NAN;
    return loss > run->most_loss ? run->most_loss : loss < -run->most_loss ? -run->most_loss : loss;
}

/* The reports of Q: losses, digests, (14), and curvatures that checks revealed. */
static void absorb(Run *run, int64_t i, Room *room) {
    int64_t S = run->quorum, n = run->n;
    const int64_t *Q = run->plan_workers + i * S;
    for (int64_t k = 0; k < S; k++) need(run, Q[k], room);
    if (run->bounds.far) hold_back(run, Q, run->bounds.t + i);
    for (int64_t k = 0; k < S; k++) {
        int64_t j = Q[k];
        double new = seen(run, run->told[j]), change = new - run->f[j];
        run->found[i * S + k] = run->digests[j];
        run->f[j] = new;
        if (change != 0)
            for (int64_t l = 0; l < run->planes; l++) run->F[l] += run->P[l * n + j] * change;
    }
    dual(run, run->numbers[4 * i], run->numbers[4 * i + 1]);
    learn(run, Q);
}

/* pi_j and a_w of the next task of worker j: as `Auto.worker_rate`. */
static void tune(Run *run, int64_t j, int64_t draws) {
    double pi = 0;
    for (int64_t l = 0; l < run->planes; l++) pi += run->lam[l] * run->P[l * run->n + j];
    double weight = pi > run->prior[j] ? pi : run->prior[j];
    run->pi[j] = pi;
    run->coupling[j] = run->kappa;
    double full = run->stride / (weight * run->curvature[j] + run->kappa);
    run->rate[j] = full / sqrt(1 + (double)draws / run->settle);
    if (run->bounds.far) {
        double least = fmax(0.1 * run->bounds.upper[j], DBL_MIN);
        run->bounds.weight[j] = pi > least ? pi : least;
    }
}

/* As `Held.on`, for some columns of worker j's phi. */
static void bound_phi(const Bounds *b, int64_t j, REAL *phi, int64_t first, int64_t n) {
    REAL limit = (REAL)(b->coordinate * b->upper[j]);
    if (b->far[j])
        memset(phi, 0, (size_t)n * sizeof(REAL));
    else if (b->coordinate && b->known)
        for (int64_t i = 0; i < n; i++) phi[i] = clipped(phi[i], limit * b->common[first + i]);
}

/* (12) and (15) with the reports of Q, then (11) for their next tasks, column by column. */
static void vectors(Run *run, const int64_t *Q, double c2, double share) {
    int64_t p = run->problem.row, S = run->quorum;
    double kappa = run->kappa, many = kappa * (double)run->n;
    REAL k = (REAL)kappa, c = (REAL)c2, rho = (REAL)run->rho2;
    for (int64_t first = 0; first < p; first += COLUMNS) {
        int64_t n = p - first < COLUMNS ? p - first : COLUMNS;
        double change[COLUMNS] = {0};
        REAL zs[COLUMNS], moved[COLUMNS];
        for (int64_t r = 0; r < S; r++) {
            const REAL *restrict new = run->flight + Q[r] * p + first;
            const REAL *restrict old = run->w + Q[r] * p + first;
            for (int64_t i = 0; i < n; i++) change[i] += (double)(new[i] - old[i]);
        }
        double *restrict z = run->z + first, *restrict mean = run->average + first;
        double *restrict sum_w = run->sum_w + first, *restrict sum_phi = run->sum_phi + first;
        for (int64_t i = 0; i < n; i++) {
            sum_w[i] += change[i];
            z[i] -= run->eta * (sum_phi[i] + many * z[i] - kappa * sum_w[i]);
            mean[i] = share >= 1 ? z[i] : mean[i] + share * (z[i] - mean[i]);
            zs[i] = (REAL)z[i];
            change[i] = 0;
        }
        for (int64_t r = 0; r < S; r++) {
            const REAL *said = run->flight + Q[r] * p + first;
            REAL *restrict old = run->w + Q[r] * p + first;
            REAL *restrict phi = run->phi + Q[r] * p + first;
            for (int64_t i = 0; i < n; i++) {
                moved[i] = said[i] - old[i];
                old[i] = said[i];
            }
            for (int64_t i = 0; i < n; i++) {
                REAL new = phi[i] + rho * (zs[i] - old[i] - c * phi[i]);
                change[i] -= (double)phi[i];
                phi[i] = new;
            }
            if (run->bounds.far) bound_phi(&run->bounds, Q[r], phi, first, n);
            REAL *restrict w = state_of(run, Q[r]) + first;
            const REAL *restrict g = run->g + Q[r] * p + first;
            REAL weight = (REAL)run->pi[Q[r]], a = (REAL)run->rate[Q[r]];
            REAL beta = (REAL)run->momentum;
            if (Q[r] == run->liar) memcpy(run->start + first, w, (size_t)n * sizeof(REAL));
            for (int64_t i = 0; i < n; i++) {
                change[i] += (double)phi[i];
                w[i] -= a * (weight * g[i] + k * w[i] - (phi[i] + k * zs[i]));
            }
            if (beta)
                for (int64_t i = 0; i < n; i++) w[i] += beta * moved[i];
        }
        for (int64_t i = 0; i < n; i++) sum_phi[i] += change[i];
    }
}

static void hand(Run *run, int64_t i, Room *room) {
    int64_t S = run->quorum;
    const int64_t *Q = run->plan_workers + i * S;
    for (int64_t k = 0; k < S; k++) {
        int64_t j = Q[k], n = run->plan_draws[i * S + k];
        tune(run, j, n);
        if (run->bounds.coordinate || (run->bounds.far && run->bounds.moved[j]))
            slope(run, j, n, state_of(run, j), run->g + j * run->problem.row, room);
    }
    vectors(run, Q, run->numbers[4 * i + 2], run->numbers[4 * i + 3]);
    for (int64_t k = 0; k < S; k++) {
        int64_t j = Q[k];
        run->draws[j] = run->plan_draws[i * S + k];
        run->checked[j] = run->plan_checks[i * S + k];
        run->reports[j] = run->plan_losses[i * S + k];
        run->revealed[j] = -1;
        __atomic_store_n(run->state + j, WAITING, __ATOMIC_RELEASE);
        if (run->queue) run->queue[run->handed] = j;
        __atomic_store_n(&run->handed, run->handed + 1, __ATOMIC_RELEASE);
    }
}

/* ---------------------------------------------------------------- what is called */

enum { ABSORB = 1, HAND = 2 };

/* Steps `first` to `last` of the plan, or one half of a step; 1: there is no memory. */
int advance(Run *run, int64_t first, int64_t last, int64_t halves, int64_t helpers) {
    int64_t due = (last - first) * run->quorum, count = 0;
    const int64_t *Q = run->plan_workers + first * run->quorum;
    pthread_t threads[HELPERS];
    Room room;
    run->taken = run->handed = run->stop = 0;
    run->queue = malloc((size_t)(2 * due + run->n) * sizeof(int64_t));
    if (!make_room(&run->problem, &room) || !run->queue) {
        leave_room(&room);
        return 1;
    }
    for (int64_t k = 0; k < due; k++)
        if (run->state[Q[k]] == WAITING) run->queue[run->handed++] = Q[k];
    for (int64_t j = 0; j < run->n; j++)
        if (run->state[j] == WAITING) run->queue[run->handed++] = j;
    while (count < helpers && count < HELPERS && !pthread_create(threads + count, 0, helper, run))
        count++;
    for (int64_t i = first; i < last; i++) {
        if (halves & ABSORB) absorb(run, i, &room);
        if (halves & HAND) hand(run, i, &room);
    }
    __atomic_store_n(&run->stop, 1, __ATOMIC_RELEASE);
    for (int64_t k = 0; k < count; k++) pthread_join(threads[k], 0);
    free(run->queue);
    leave_room(&room);
    return 0;
}

/* Every result that is in flight. */
int finish(Run *run) {
    Room room;
    int made = make_room(&run->problem, &room);
    run->taken = run->handed = 0;
    for (int64_t j = 0; made && j < run->n; j++) need(run, j, &room);
    leave_room(&room);
    return !made;
}
