# First come, first served; a dead waiter costs no time.
t=0s a acquire x ttl=10s
  -> granted token 1 until t=10s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=10s
t=1s b open ttl=5s grace=0s
  -> session 2 opened
  * session 2 of b opened
  = x: held, exclusive; a token 1 until t=10s
t=2s b acquire x wait session=2
  -> waiting with ticket 1, 0 before it
  * x: b waits, ticket 1
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive)
t=3s c acquire x wait ttl=10s
  -> waiting with ticket 2, 1 before it
  * x: c waits, ticket 2
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive)
t=4s d acquire x wait ttl=10s
  -> waiting with ticket 3, 2 before it
  * x: d waits, ticket 3
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive), d (exclusive)
t=4s d acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by a for 6s more (3 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive), d (exclusive)
t=5s e acquire x wait=60s ttl=10s
  -> waiting with ticket 4, 3 before it
  * x: e waits, ticket 4
  = x: held, exclusive; a token 1 until t=10s; waiting: b (exclusive), c (exclusive), d (exclusive), e (exclusive)

# b's session expires at t=6s, and its place with it. a releases: c has the lock in that step.
t=7s a release x
  -> released
  * session 2 of b expired
  * x: b left, ticket 1, its session being over
  * x: token 1 of a released after 7s
  * x: granted to c, token 3, exclusive, ticket 2 after 4s
  = x: held, exclusive; c token 3 until t=17s; waiting: d (exclusive), e (exclusive)
t=8s c acquire x wait
  -> renewed token 3 until t=38s
  * x: renewed by c, token 3
  = x: held, exclusive; c token 3 until t=38s; waiting: d (exclusive), e (exclusive)
t=9s d leave x ticket=3
  -> left
  * x: d left, ticket 3, as it asked to
  = x: held, exclusive; c token 3 until t=38s; waiting: e (exclusive)
t=10s c release x
  -> released
  * x: token 3 of c released after 3s
  * x: granted to e, token 4, exclusive, ticket 4 after 5s
  = x: held, exclusive; e token 4 until t=20s
t=10s f leave x ticket=4
  -> refused, E_LOCK_EXPIRED: there is no such waiter in the queue of lock 'x'; request the lock anew, under a new request key if there was one
  = x: held, exclusive; e token 4 until t=20s
