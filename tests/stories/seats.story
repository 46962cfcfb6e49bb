# Rule 6: a lock with seats has at most so many holders, each with a token and a seat of its own.
t=0s a acquire gpu seats=2
  -> granted token 1 until t=30s
  * gpu: granted to a, token 1, seats
  = gpu: held, seats of 2; a token 1 until t=30s, seat 0
t=1s b acquire gpu seats=2
  -> granted token 2 until t=31s
  * gpu: granted to b, token 2, seats
  = gpu: held, seats of 2; a token 1 until t=30s, seat 0; b token 2 until t=31s, seat 1
t=2s c acquire gpu seats=2
  -> refused, E_LOCK_CONFLICT: lock 'gpu': all 2 seats are taken, one of them by a for 28s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = gpu: held, seats of 2; a token 1 until t=30s, seat 0; b token 2 until t=31s, seat 1
# The queue is fair, also between seats and exclusive requests.
t=3s c acquire gpu seats=2 wait
  -> waiting with ticket 1, 0 before it
  * gpu: c waits, ticket 1
  = gpu: held, seats of 2; a token 1 until t=30s, seat 0; b token 2 until t=31s, seat 1; waiting: c (seats)
t=3s d acquire gpu wait
  -> waiting with ticket 2, 1 before it
  * gpu: d waits, ticket 2
  = gpu: held, seats of 2; a token 1 until t=30s, seat 0; b token 2 until t=31s, seat 1; waiting: c (seats), d (exclusive)
t=3s e acquire gpu seats=2 wait
  -> waiting with ticket 3, 2 before it
  * gpu: e waits, ticket 3
  = gpu: held, seats of 2; a token 1 until t=30s, seat 0; b token 2 until t=31s, seat 1; waiting: c (seats), d (exclusive), e (seats)
# A release frees the seat, and the first waiter gets it. Who wants the whole lock waits for both.
t=4s a release gpu
  -> released
  * gpu: token 1 of a released after 4s
  * gpu: granted to c, token 3, seats, ticket 1 after 1s
  = gpu: held, seats of 2; b token 2 until t=31s, seat 1; c token 3 until t=34s, seat 0; waiting: d (exclusive), e (seats)
t=4s f acquire gpu seats=2
  -> refused, E_LOCK_CONFLICT: lock 'gpu': all 2 seats are taken, one of them by b for 27s more (2 waiting); wait with 'latchfs run' or 'latchfs wait'
  = gpu: held, seats of 2; b token 2 until t=31s, seat 1; c token 3 until t=34s, seat 0; waiting: d (exclusive), e (seats)
t=5s b release gpu
  -> released
  * gpu: token 2 of b released after 4s
  = gpu: held, seats of 2; c token 3 until t=34s, seat 0; waiting: d (exclusive), e (seats)
t=5s c release gpu
  -> released
  * gpu: token 3 of c released after 1s
  * gpu: granted to d, token 4, exclusive, ticket 2 after 2s
  = gpu: held, exclusive; d token 4 until t=35s; waiting: e (seats)
t=6s d release gpu
  -> released
  * gpu: token 4 of d released after 1s
  * gpu: granted to e, token 5, seats, ticket 3 after 3s
  = gpu: held, seats of 2; e token 5 until t=36s, seat 0
t=6s b acquire gpu seats=2
  -> granted token 6 until t=36s
  * gpu: granted to b, token 6, seats
  = gpu: held, seats of 2; e token 5 until t=36s, seat 0; b token 6 until t=36s, seat 1

# The number of seats belongs to the lock while somebody holds it or waits for it.
t=7s f acquire gpu seats=3
  -> refused, E_LOCK_CONFLICT: lock 'gpu' has 2 seats while somebody holds it or waits for it, not 3; ask for 2, or again when it is free
  = gpu: held, seats of 2; e token 5 until t=36s, seat 0; b token 6 until t=36s, seat 1
t=7s f acquire gpu seats=3 wait
  -> refused, E_LOCK_CONFLICT: lock 'gpu' has 2 seats while somebody holds it or waits for it, not 3; ask for 2, or again when it is free
  = gpu: held, seats of 2; e token 5 until t=36s, seat 0; b token 6 until t=36s, seat 1
t=7s b release gpu
  -> released
  * gpu: token 6 of b released after 1s
  = gpu: held, seats of 2; e token 5 until t=36s, seat 0
t=7s e release gpu
  -> released
  * gpu: token 5 of e released after 1s
  = all free
t=7s f acquire gpu seats=3
  -> granted token 7 until t=37s
  * gpu: granted to f, token 7, seats
  = gpu: held, seats of 3; f token 7 until t=37s, seat 0

# A holder acquires its own seat again, and upgrades while it is the only one, under a new token.
t=8s f acquire gpu seats=3
  -> renewed token 7 until t=38s
  * gpu: renewed by f, token 7
  = gpu: held, seats of 3; f token 7 until t=38s, seat 0
t=8s g acquire gpu seats=3
  -> granted token 8 until t=38s
  * gpu: granted to g, token 8, seats
  = gpu: held, seats of 3; f token 7 until t=38s, seat 0; g token 8 until t=38s, seat 1
t=8s f acquire gpu
  -> refused, E_LOCK_CONFLICT: lock 'gpu': all 3 seats are taken, one of them by g for 30s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = gpu: held, seats of 3; f token 7 until t=38s, seat 0; g token 8 until t=38s, seat 1
t=8s f release gpu
  -> released
  * gpu: token 7 of f released after 1s
  = gpu: held, seats of 3; g token 8 until t=38s, seat 1
t=8s g acquire gpu
  -> renewed token 9 until t=38s
  * gpu: token 8 of g replaced after 0ms
  * gpu: granted to g, token 9, exclusive
  = gpu: held, exclusive; g token 9 until t=38s
t=8s g acquire gpu seats=3
  -> renewed token 9 until t=38s
  * gpu: renewed by g, token 9
  = gpu: held, seats of 3; g token 9 until t=38s, seat 0
t=8s g release gpu
  -> released
  * gpu: token 9 of g released after 0ms
  = all free

# An expired lease keeps its seat for its grace, and the seat of a lost lease goes to the next one.
t=10s a acquire cpu seats=2 ttl=2s grace=1s
  -> granted token 10 until t=12s
  * cpu: granted to a, token 10, seats
  = cpu: held, seats of 2; a token 10 until t=12s, seat 0
t=10s b acquire cpu seats=2 ttl=9s grace=1s
  -> granted token 11 until t=19s
  * cpu: granted to b, token 11, seats
  = cpu: held, seats of 2; a token 10 until t=12s, seat 0; b token 11 until t=19s, seat 1
t=12s c acquire cpu seats=2
  -> refused, E_LOCK_CONFLICT: lock 'cpu': grace period active: only a may take it back for 1s more; try again then
  * cpu: expired, token 10 of a
  = cpu: held, seats of 2; a token 10 in grace until t=13s, seat 0; b token 11 until t=19s, seat 1
t=12s c acquire cpu seats=2 wait
  -> waiting with ticket 4, 0 before it
  * cpu: c waits, ticket 4
  = cpu: held, seats of 2; a token 10 in grace until t=13s, seat 0; b token 11 until t=19s, seat 1; waiting: c (seats)
t=13s x settle
  -> settled
  * cpu: token 10 of a lapsed after 3s
  * cpu: granted to c, token 12, seats, ticket 4 after 1s
  = cpu: held, seats of 2; b token 11 until t=19s, seat 1; c token 12 until t=43s, seat 0

# A steal of one holder takes its seat alone, and nobody uses the seat until it has stopped.
t=14s d steal cpu only=7 reason=stuck
  -> refused, E_FENCING_MISMATCH: the tenure of lock 'cpu' with token 7 is over, so nothing was stolen; read the lock's status to see who holds it now
  = cpu: held, seats of 2; b token 11 until t=19s, seat 1; c token 12 until t=43s, seat 0
t=14s d steal cpu only=12 reason=stuck
  -> stolen token 13 until t=45s, begins t=15s
  * cpu: token 12 of c stolen by d (stuck) after 1s
  * cpu: granted to d, token 13, seats
  = cpu: held, seats of 2; b token 11 until t=19s, seat 1; d token 13 until t=45s, seat 0, firm
t=14s e acquire cpu seats=2
  -> refused, E_LOCK_CONFLICT: lock 'cpu': all 2 seats are taken, one of them by b for 5s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = cpu: held, seats of 2; b token 11 until t=19s, seat 1; d token 13 until t=45s, seat 0, firm
t=15s x settle
  -> settled
  = cpu: held, seats of 2; b token 11 until t=19s, seat 1; d token 13 until t=45s, seat 0, firm
t=15s d acquire cpu seats=2
  -> renewed token 13 until t=45s
  * cpu: renewed by d, token 13
  = cpu: held, seats of 2; b token 11 until t=19s, seat 1; d token 13 until t=45s, seat 0, firm
t=16s e steal cpu reason=mine
  -> stolen token 14 until t=47s, begins t=17s
  * cpu: token 11 of b stolen by e (mine) after 6s
  * cpu: token 13 of d stolen by e (mine) after 1s
  * cpu: granted to e, token 14, exclusive
  = cpu: held, exclusive; e token 14 until t=47s, firm
t=18s e release cpu
  -> released
  * cpu: token 14 of e released after 1s
  = all free
t=18s e steal cpu only=12 reason=late
  -> refused, E_LOCK_EXPIRED: the tenure of lock 'cpu' with token 12 is over, so nothing was stolen; read the lock's status to see who holds it now
  = all free

# A reset of one client keeps its seats unusable, and leaves the others alone.
t=20s a acquire ram seats=3
  -> granted token 15 until t=50s
  * ram: granted to a, token 15, seats
  = ram: held, seats of 3; a token 15 until t=50s, seat 0
t=20s b acquire ram seats=3 firm
  -> granted token 16 until t=50s
  * ram: granted to b, token 16, seats
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; b token 16 until t=50s, seat 1, firm
t=20s b acquire ram seats=3 firm
  -> granted token 17 until t=50s
  * ram: granted to b, token 17, seats
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; b token 16 until t=50s, seat 1, firm; b token 17 until t=50s, seat 2, firm
t=20s c acquire ram seats=3 wait
  -> waiting with ticket 5, 0 before it
  * ram: c waits, ticket 5
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; b token 16 until t=50s, seat 1, firm; b token 17 until t=50s, seat 2, firm; waiting: c (seats)
t=21s x reset of=b reason=gone
  -> reset 2 holds, 0 places
  * ram: token 16 of b stolen by x (gone) after 1s
  * ram: token 17 of b stolen by x (gone) after 1s
  * ram: granted to x, token 18, seats
  * ram: granted to x, token 19, seats
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; x token 18 until t=22s, seat 1, firm; x token 19 until t=22s, seat 2, firm; waiting: c (seats)
t=22s x settle
  -> settled
  * ram: token 18 of x released after 0ms
  * ram: granted to c, token 20, seats, ticket 5 after 2s
  * ram: token 19 of x released after 0ms
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; c token 20 until t=52s, seat 1

# A name with handovers has one holder at a time.
t=25s a acquire h remember
  -> granted token 21 until t=55s, grant 1 without a handover
  * h: granted to a, token 21, exclusive
  + h: grant 1 without a handover
  = h: held, exclusive; a token 21 until t=55s
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; c token 20 until t=52s, seat 1
t=25s a release h
  -> released
  * h: token 21 of a released after 0ms
  + h: grant 1 without a handover
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; c token 20 until t=52s, seat 1
t=25s b acquire h seats=2
  -> refused, E_INVALID: lock 'h' can't have several seats, since its name is remembered for handovers, which only a single holder sets; use another name
  + h: grant 1 without a handover
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; c token 20 until t=52s, seat 1
t=25s b acquire ram seats=3 remember
  -> refused, E_INVALID: lock 'ram' can't have several seats, since its name is remembered for handovers, which only a single holder sets; use another name
  + h: grant 1 without a handover
  = ram: held, seats of 3; a token 15 until t=50s, seat 0; c token 20 until t=52s, seat 1
