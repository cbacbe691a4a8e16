// Work under a lease of leaselock, over node-postgres.
//
//   await withLease(pool, 'nightly', async ({ fence, signal, transaction }) => {
//     await transaction(async client => {              // checks the fence first
//       await client.query('INSERT INTO report ...');  // LS001, from COMMIT, too: stop, never retry
//     });
//     await fetch(url, { signal });
//   }, { wait: 30 });
//
// The lease is renewed in the background, so the pool needs a spare connection.  If it is lost or
// cannot be renewed in time, the signal is aborted at once, transaction() refuses, and withLease()
// rejects, even if the work continues to its end.
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

const AGAIN = 500, PATIENCE = 3000;  // ms: pause after a failed connection, and minimum time to retry
const ignore = () => {};
// The lock was not acquired, or is no longer held: "state" is the ticket's state or the reason.
const notHeld = (lock, state) => Object.assign(new Error(`lock "${lock}": ${state}`), { name: 'NotHeld', state });

export async function withLease(pool, name, work, { owner = randomUUID(), lease = 60, wait = 0, scope = 'public' } = {}) {
  let ticket, fence, deadline, renewal, watchdog, over = false, result;
  const lost = new AbortController(), { signal } = lost;
  const lose = state => lost.abort(notHeld(name, state));

  const call = async (text, values, seconds) => {
    const sent = performance.now();  // the lease is timed from before the call
    const query = { text: `SELECT * FROM leaselock.lease_${text}`, values, query_timeout: seconds * 1000 };
    const answer = (await pool.query(query)).rows[0];
    ticket = answer.ticket;
    if (answer.state === 'held') {
      fence = answer.fence;
      deadline = sent + Number(answer.remaining_ms);
    }
    return { state: answer.state, pause: Number(answer.next_call_ms) };
  };

  const acquire = async () => {
    const giveUp = performance.now() + Math.max(wait * 1000, PATIENCE);
    const values = [name, owner, `${lease} s`, `${wait} s`, scope, randomUUID()];
    for (;;) {
      const { state, pause } = await call('acquire($1, $2, $3, $4, $5, $6)', values, wait + lease).catch(error => {
        if (error.severity === 'ERROR' || performance.now() > giveUp) throw error;
        return { state: 'waiting', pause: AGAIN };  // the request id finds a ticket that the call may have made
      });
      if (state === 'held') return schedule(pause);
      if (state !== 'waiting') throw notHeld(name, state);
      await sleep(pause);
    }
  };

  const schedule = pause => {
    [renewal, watchdog].forEach(clearTimeout);
    if (over || signal.aborted) return;
    renewal = setTimeout(renew, pause);
    watchdog = setTimeout(lose, deadline - performance.now(), 'not renewed in time');
  };

  const renew = () => call('renew($1)', [ticket], lease / 3).then(({ state, pause }) => {
    if (state !== 'held') lose(state);
    schedule(pause);
  }, () => schedule(AGAIN));

  const transaction = async body => {
    if (performance.now() >= deadline) lose('not renewed in time');
    signal.throwIfAborted();
    const client = await pool.connect();
    client.on('error', ignore);  // the query that encounters it fails
    let failure;
    try {
      await client.query('BEGIN');
      await client.query('SELECT leaselock.fence_assert($1, $2, $3)', [name, fence, scope]);
      const answer = await body(client);
      if ((await client.query('COMMIT')).command !== 'COMMIT') throw new Error('a statement had failed: rolled back');
      return answer;
    } catch (error) {
      if (error.code === 'LS001') schedule(0);  // so that the signal is aborted, if it is this lease
      await client.query('ROLLBACK').catch(error => { failure = error; });
      throw error;
    } finally {
      client.off('error', ignore);
      client.release(failure);
    }
  };

  if (!pool.listenerCount('error')) pool.on('error', ignore);  // otherwise a broken idle connection ends the process
  try {
    await acquire();
    result = await work({ ticket, fence, signal, transaction });
  } finally {
    over = true;
    schedule();
    const release = ticket && call('release($1)', [ticket], PATIENCE / 1000)
      .then(({ state }) => state === 'released' || lose(state), ignore);
    await Promise.race([release, sleep(PATIENCE, null, { ref: false })]);
  }
  signal.throwIfAborted();
  return result;
}
