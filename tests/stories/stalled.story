# Nobody looked for a while: leases only stretch, and are ended in the order in which they were due.
t=0s a acquire x ttl=10s grace=5s
  -> granted token 1 until t=10s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=10s
t=1s b acquire x wait ttl=10s
  -> waiting with ticket 1, 0 before it
  * x: b waits, ticket 1
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive)
t=2s c acquire x wait=20s
  -> waiting with ticket 2, 1 before it
  * x: c waits, ticket 2
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive)
t=3s d open ttl=10s grace=5s
  -> session 2 opened
  * session 2 of d opened
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive)
t=4s d acquire y session=2
  -> granted token 3 with session 2
  * y: granted to d, token 3, exclusive
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive)
  = y: held, exclusive; d token 3 until t=13s
t=5s e acquire y wait ttl=10s
  -> waiting with ticket 3, 0 before it
  * y: e waits, ticket 3
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive)
  = y: held, exclusive; d token 3 until t=13s; waiting: e (exclusive)

# x was free at t=15s, c went at t=22s, y was free at t=18s; b and e are served only now.
t=100s - settle
  -> settled
  * x: expired, token 1 of a
  * session 2 of d expired
  * y: expired, token 3 of d
  * x: token 1 of a lapsed after 1m40s
  * x: granted to b, token 4, exclusive, ticket 1 after 1m39s
  * y: token 3 of d lapsed after 1m36s
  * y: granted to e, token 5, exclusive, ticket 3 after 1m35s
  * x: c left, ticket 2, out of patience
  = x: held, exclusive; b token 4 until t=110s
  = y: held, exclusive; e token 5 until t=110s
t=109.999999999s - settle
  -> settled
  = x: held, exclusive; b token 4 until t=110s
  = y: held, exclusive; e token 5 until t=110s
