/* Rotor's dynamic program in plain C, as its published solver lays it out: dense tables of double values and long
 * decisions over memory, first and last stage, memory the outermost loop and the split the innermost.
 *
 * Stages 0 .. n - 1, the last one the loss; x[k] slots of activation k and of its gradient, xb[k] what running stage
 * k - 1 with everything saved leaves behind, its output included. OPT(m, i, l) is the least time of stages i .. l with
 * m slots free beside the input of i. Going through lengths, starts, memory and splits instead takes four to five times
 * as long on 340 stages and 500 slots, for then each step of the split is in another part of the table.
 */
#include <math.h>
#include <stddef.h>

typedef struct {
    long stages, slots;
    const double *forward, *backward;
    const long *x, *xb, *forward_scratch, *backward_scratch;
    double* opt;
    long* what; /* the next kept activation, or -1 where stage i saves everything */
} Problem;

static size_t at(const Problem* p, long m, long i, long l) { return (size_t)((m * p->stages + i) * p->stages + l); }

static long larger(long a, long b) { return a > b ? a : b; }

static void single(const Problem* p, long m, long i) {
    const long need = p->x[i + 1] + p->xb[i + 1] + larger(p->forward_scratch[i], p->x[i] + p->backward_scratch[i]);
    p->opt[at(p, m, i, i)] = m >= need ? p->forward[i] + p->backward[i] : INFINITY;
}

/* `forwards`: the largest need of a forward from i up to before l, without the gradient that waits. */
static void several(const Problem* p, long m, long i, long l, long forwards) {
    double best = INFINITY;
    long split = -1;
    if (m >= p->x[l + 1] + forwards) {
        double sum = 0;
        for (long j = i + 1; j <= l; ++j) {
            sum += p->forward[j - 1];
            if (m >= p->x[j]) {
                const double cost = sum + p->opt[at(p, m - p->x[j], j, l)] + p->opt[at(p, m, i, j - 1)];
                if (cost < best) {
                    best = cost;
                    split = j;
                }
            }
        }
        if (m >= p->xb[i + 1]) {
            const double cost = p->opt[at(p, m, i, i)] + p->opt[at(p, m - p->xb[i + 1], i + 1, l)];
            if (cost < best) {
                best = cost;
                split = -1;
            }
        }
    }
    p->opt[at(p, m, i, l)] = best;
    p->what[at(p, m, i, l)] = split;
}

static long first_need(const Problem* p, long i) { return p->x[i + 1] + p->forward_scratch[i]; }

static long next_need(const Problem* p, long k) { return p->x[k] + p->x[k + 1] + p->forward_scratch[k]; }

/* opt and what: (slots + 1) * stages * stages entries, zeros. */
void rotor_table(long stages, long slots, const double* forward, const double* backward, const long* x, const long* xb,
                 const long* forward_scratch, const long* backward_scratch, double* opt, long* what) {
    const Problem p = {stages, slots, forward, backward, x, xb, forward_scratch, backward_scratch, opt, what};
    for (long m = 0; m <= slots; ++m) {
        for (long i = stages - 1; i >= 0; --i) { /* upper parts first: where x = 0 they are read for the same m */
            single(&p, m, i);
            long forwards = first_need(&p, i);
            for (long l = i + 1; l < stages; ++l) {
                if (l > i + 1) {
                    forwards = larger(forwards, next_need(&p, l - 1));
                }
                several(&p, m, i, l, forwards);
            }
        }
    }
}
