# One keep-alive renews all that hangs on a session, whoever holds it.
t=0s host open ttl=10s grace=5s
  -> session 1 opened
  * session 1 of host opened
  = all free
t=1s host:ann acquire x session=1
  -> granted token 2 with session 1
  * x: granted to host:ann, token 2, exclusive
  = x: held, exclusive; host:ann token 2 until t=10s
t=2s host:bob acquire y session=1
  -> granted token 3 with session 1
  * y: granted to host:bob, token 3, exclusive
  = x: held, exclusive; host:ann token 2 until t=10s
  = y: held, exclusive; host:bob token 3 until t=10s
t=2s eve acquire x wait
  -> waiting with ticket 1, 0 before it
  * x: eve waits, ticket 1
  = x: held, exclusive; host:ann token 2 until t=10s; waiting: eve (exclusive)
  = y: held, exclusive; host:bob token 3 until t=10s
t=9s host keep session=1
  -> kept until t=19s
  * session 1 kept alive
  = x: held, exclusive; host:ann token 2 until t=19s; waiting: eve (exclusive)
  = y: held, exclusive; host:bob token 3 until t=19s
t=18.999999999s - settle
  -> settled
  = x: held, exclusive; host:ann token 2 until t=19s; waiting: eve (exclusive)
  = y: held, exclusive; host:bob token 3 until t=19s

# It expires: all is in grace at once. A keep-alive of what is over is refused.
t=19s host keep session=1
  -> refused, E_LOCK_EXPIRED: session 1 is over, and its leases are lost; open a new one
  * session 1 of host expired
  * x: expired, token 2 of host:ann
  * y: expired, token 3 of host:bob
  = x: grace, exclusive; host:ann token 2 in grace until t=24s; waiting: eve (exclusive)
  = y: grace, exclusive; host:bob token 3 in grace until t=24s
t=20s eve acquire y
  -> refused, E_LOCK_CONFLICT: lock 'y': grace period active: only host:bob may take it back for 4s more; try again then
  = x: grace, exclusive; host:ann token 2 in grace until t=24s; waiting: eve (exclusive)
  = y: grace, exclusive; host:bob token 3 in grace until t=24s

# A new session takes back what was in grace, under the same token.
t=21s host open ttl=10s grace=5s
  -> session 4 opened
  * session 4 of host opened
  = x: grace, exclusive; host:ann token 2 in grace until t=24s; waiting: eve (exclusive)
  = y: grace, exclusive; host:bob token 3 in grace until t=24s
t=22s host:bob acquire y session=4
  -> renewed token 3 with session 4
  * y: renewed by host:bob, token 3
  = x: grace, exclusive; host:ann token 2 in grace until t=24s; waiting: eve (exclusive)
  = y: held, exclusive; host:bob token 3 until t=31s
t=24s - settle
  -> settled
  * x: token 2 of host:ann lapsed after 23s
  * x: granted to eve, token 5, exclusive, ticket 1 after 22s
  = x: held, exclusive; eve token 5 until t=54s
  = y: held, exclusive; host:bob token 3 until t=31s

# A clean end releases all, in one step, and has no grace.
t=25s eve acquire y wait
  -> waiting with ticket 2, 0 before it
  * y: eve waits, ticket 2
  = x: held, exclusive; eve token 5 until t=54s
  = y: held, exclusive; host:bob token 3 until t=31s; waiting: eve (exclusive)
t=26s host end session=4
  -> session ended
  * y: token 3 of host:bob released after 24s
  * session 4 of host closed
  * y: granted to eve, token 6, exclusive, ticket 2 after 1s
  = x: held, exclusive; eve token 5 until t=54s
  = y: held, exclusive; eve token 6 until t=56s
