/* Two sessions of one owner, each with calls for two tickets of one lock. */
#define OWNERS	2
#define SLOTS	2
#define MAX_FENCE	3
#define CALLS	(ACQUIRE | LOOK)
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 2, ACQUIRE | LOOK, 2, 2);
		run Client(1, 2, ACQUIRE | LOOK, 1, 2);
		run Clock()
	}
}
