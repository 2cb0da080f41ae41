/* The whole library: gradients and losses of rows, for `stacks_native`, and digests.

   Whoever calls brings memory of `room_bytes`, zero at first, that nobody else uses meanwhile. */

#include "rows.c"

const int64_t structure_size = sizeof(Problem);

#define PIECE 128 /* samples whose features are kept at once */

static Problem pieces_of(const Problem *b) {
    Problem piece = *b;
    piece.batch = PIECE;
    return piece;
}

int64_t room_bytes(const Problem *b) {
    Problem piece = pieces_of(b);
    return 64 + PIECE * 8 + room_size(&piece) * (int64_t)sizeof(REAL);
}

static void enter(const Problem *b, char *memory, Room *room) {
    Problem piece = pieces_of(b);
    char *whole = memory + (64 - (uintptr_t)memory % 64);
    lay_room(&piece, room, (REAL *)(whole + PIECE * 8), (int64_t *)whole);
}

/* g += the part of one row's gradient that is due to `count` samples of its batch; 0: a target is
   no class. */
static int add_piece(const Problem *b, int64_t count, const REAL *w, REAL *g, Room *room,
                     const Drawn *drawn) {
    Problem piece = *b;
    uint64_t classes = (uint64_t)b->outputs[b->layers - 1];
    for (int64_t k = 0; k < count; k++)
        if ((uint64_t)b->targets[room->index[k]] >= classes) return 0;
    piece.batch = count;
    if (count == b->batch) {
        gradient(&piece, w, room->index, g, room, drawn);
        return 1;
    }
    REAL share = (REAL)count / (REAL)b->batch;
    gradient(&piece, w, room->index, room->again, room, drawn);
    for (int64_t i = 0; i < b->row; i++) g[i] += share * room->again[i];
    return 1;
}

/* Row r of g is the gradient at row r of w. With `asked` (rows, 4) on batch number asked[r][1] of
   worker asked[r][0], whose samples are asked[r][2] from number asked[r][3] on; without, on the
   samples from number r B on. `keys` (rows, 2) are those of dropout, if there is any. 0: a target
   is no class. */
int gradients(const Problem *b, void *memory, int64_t rows, const int64_t *asked,
              const uint32_t *keys, const REAL *w, REAL *g) {
    Room room;
    enter(b, memory, &room);
    memset(g, 0, (size_t)(rows * b->row) * sizeof(REAL));
    for (int64_t r = 0; r < rows; r++, w += b->row, g += b->row)
        for (int64_t from = 0; from < b->batch; from += PIECE) {
            int64_t count = b->batch - from < PIECE ? b->batch - from : PIECE;
            const int64_t *ask = asked + 4 * r;
            if (asked)
                draw_some(b->seed, ask[0], ask[1], ask[2], ask[3], from, count, room.index);
            else
                for (int64_t k = 0; k < count; k++) room.index[k] = r * b->batch + from + k;
            Drawn drawn = {keys + 2 * r, from, b->batch};
            if (!add_piece(b, count, w, g, &room, &drawn)) return 0;
        }
    return 1;
}

/* The mean loss of one row over the first n samples, and how many it gets right. */
double judged(const Problem *b, void *memory, const REAL *w, int64_t n, int64_t *right) {
    Room room;
    enter(b, memory, &room);
    return judge(b, w, b->samples, b->targets, n, right, &room);
}

/* As `digest.pieces`: a digest of every `piece` numbers of x. */
void digests(const REAL *x, int64_t count, int64_t piece, const int64_t *odd, int64_t *found) {
    for (int64_t first = 0; first < count; first += piece) {
        int64_t n = count - first < piece ? count - first : piece;
        uint64_t sum = 0;
        for (int64_t i = 0; i < n; i++) {
            bits b;
            memcpy(&b, x + first + i, sizeof b);
            sum += (uint64_t)(int64_t)b * (uint64_t)odd[i];
        }
        *found++ = (int64_t)sum;
    }
}
