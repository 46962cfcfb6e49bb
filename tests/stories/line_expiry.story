# An expired holder keeps its grace from those who wait, too; then the first of them is served.
t=0s a acquire x ttl=10s grace=5s
  -> granted token 1 until t=10s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=10s
t=1s b acquire x wait ttl=10s
  -> waiting with ticket 1, 0 before it
  * x: b waits, ticket 1
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive)
t=2s c acquire x wait ttl=10s
  -> waiting with ticket 2, 1 before it
  * x: c waits, ticket 2
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive)
t=10s - settle
  -> settled
  * x: expired, token 1 of a
  = x: grace, exclusive; a token 1 in grace until t=15s; waiting: b (exclusive), c (exclusive)
t=14.999999999s - settle
  -> settled
  = x: grace, exclusive; a token 1 in grace until t=15s; waiting: b (exclusive), c (exclusive)
t=15s - settle
  -> settled
  * x: token 1 of a lapsed after 15s
  * x: granted to b, token 2, exclusive, ticket 1 after 14s
  = x: held, exclusive; b token 2 until t=25s; waiting: c (exclusive)
t=30s - settle
  -> settled
  * x: expired, token 2 of b
  * x: token 2 of b lapsed after 15s
  * x: granted to c, token 3, exclusive, ticket 2 after 28s
  = x: held, exclusive; c token 3 until t=40s
