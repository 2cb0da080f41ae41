/* The order of events, see order.py: a heap of workers by (due, worker). */

#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int64_t n, quorum, ahead; /* ahead: delays of each worker in `known`, from number first[j] on */
    double *due;
    int64_t *number, *task, next_id;
    const double *known;
    const int64_t *first;
    int64_t *workers, *numbers, *arrived; /* (steps, S), as in order.Block */
    double *times;
    int64_t *tasks, *answered, *places;
} Order;

static int before(const Order *o, int64_t a, int64_t b) {
    return o->due[a] < o->due[b] || (o->due[a] == o->due[b] && a < b);
}

static void sink(const Order *o, int64_t *heap, int64_t size, int64_t at) {
    int64_t j = heap[at];
    for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
        if (child + 1 < size && before(o, heap[child + 1], heap[child])) child++;
        if (!before(o, heap[child], j)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = j;
}

static void rise(const Order *o, int64_t *heap, int64_t at) {
    int64_t j = heap[at];
    for (; at && before(o, j, heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = j;
}

/* Steps from `begin` on, until `end` or until a delay is not known; the number of the next one. */
int64_t lay_out(Order *o, int64_t begin, int64_t end) {
    int64_t S = o->quorum, size = o->n, i;
    int64_t *heap = malloc((size_t)o->n * sizeof(int64_t));
    if (!heap) return -1;
    for (int64_t j = 0; j < size; j++) heap[j] = j;
    for (int64_t at = size / 2; at-- > 0;) sink(o, heap, size, at);
    for (i = begin; i < end; i++) {
        int64_t *workers = o->workers + i * S, *arrived = o->arrived + i * S, known = 1;
        for (int64_t k = 0; k < S; k++) {
            int64_t j = arrived[k] = heap[0], at = k;
            known &= o->number[j] + 1 - o->first[j] < o->ahead;
            heap[0] = heap[--size];
            sink(o, heap, size, 0);
            for (; at && workers[at - 1] > j; at--) workers[at] = workers[at - 1];
            workers[at] = j;
        }
        if (!known) break;
        double last = o->due[arrived[S - 1]];
        for (int64_t k = 0; k < S; k++) {
            int64_t j = arrived[k];
            o->times[i * S + k] = o->due[j];
            o->tasks[i * S + k] = o->task[j];
            o->answered[i * S + k] = o->number[j];
            for (int64_t at = 0; at < S; at++)
                if (workers[at] == j) o->places[i * S + at] = k;
        }
        for (int64_t k = 0; k < S; k++) {
            int64_t j = workers[k], number = ++o->number[j];
            o->numbers[i * S + k] = number;
            o->task[j] = o->next_id++;
            o->due[j] = last + o->known[j * o->ahead + number - o->first[j]];
            heap[size] = j;
            rise(o, heap, size++);
        }
    }
    free(heap);
    return i;
}
