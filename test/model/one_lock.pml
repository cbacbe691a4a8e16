/*
 * One lock and three owners: grants, queue, lapse, promotion, a look that
 * grants itself, and a stalled writer of the first holder.
 */
#define CALLS	(ACQUIRE | LOOK | RELEASE | RENEW)
#define WRITER
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 1, LOOK | RENEW | RELEASE, 1, 1);
		run Writer(1, 1);
		run Client(2, 2, ACQUIRE | LOOK | RELEASE, 1, 2);
		run Client(3, 3, ACQUIRE | LOOK, 1, 2);
		run Clock()
	}
}
