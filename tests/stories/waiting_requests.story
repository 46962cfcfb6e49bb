# The id of a request that waits names its place in the queue, and later the grant.
rules requests=4 requests-kept=10s
t=0s a acquire x ttl=60s
  -> granted token 1 until t=60s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=60s
t=0s b acquire x firm wait=30s ttl=20s request=one
  -> waiting with ticket 1, 0 before it
  * x: b waits, ticket 1
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
# Each repeat says how long the request waits from then on. The id is kept as long as the place.
t=20s b acquire x firm wait=30s ttl=20s request=one
  -> replayed from t=0s: waiting with ticket 1, 0 before it
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=45s b acquire x firm wait=30s ttl=20s request=one
  -> replayed from t=0s: waiting with ticket 1, 0 before it
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=46s b acquire x firm wait=40s ttl=20s request=one
  -> refused, E_INVALID: request key 'one' was used before for another request; choose a new key for each request, and repeat only the same request
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=50s a release x
  -> released
  * x: token 1 of a released after 50s
  * x: granted to b, token 2, exclusive, ticket 1 after 50s
  = x: held, exclusive; b token 2 until t=70s, firm
t=51s b acquire x firm wait=30s ttl=20s request=one
  -> replayed from t=50s: granted token 2 until t=70s
  = x: held, exclusive; b token 2 until t=70s, firm
t=52s b release x
  -> released
  * x: token 2 of b released after 2s
  = all free
t=53s b acquire x firm wait=30s ttl=20s request=one
  -> replayed from t=50s: granted token 2 until t=70s
  = all free
# An answer is remembered from the grant on, for as long as any other.
t=60s b acquire x firm wait=30s ttl=20s request=one
  -> granted token 3 until t=80s
  * x: granted to b, token 3, exclusive
  = x: held, exclusive; b token 3 until t=80s, firm

# Who does not repeat its request loses its place, and a late repeat does not enter the queue again.
t=61s c acquire x firm wait=5s request=two
  -> waiting with ticket 2, 0 before it
  * x: c waits, ticket 2
  = x: held, exclusive; b token 3 until t=80s, firm; waiting: c (exclusive)
t=66s c acquire x firm wait=5s request=two
  -> refused, E_LOCK_EXPIRED: there is no such waiter in the queue of lock 'x'; request the lock anew, under a new request key if there was one
  * x: c left, ticket 2, out of patience
  = x: held, exclusive; b token 3 until t=80s, firm
t=75.999999999s c acquire x firm wait=5s request=two
  -> refused, E_LOCK_EXPIRED: there is no such waiter in the queue of lock 'x'; request the lock anew, under a new request key if there was one
  = x: held, exclusive; b token 3 until t=80s, firm
t=76s c acquire x firm wait=5s request=two
  -> waiting with ticket 3, 0 before it
  * x: c waits, ticket 3
  = x: held, exclusive; b token 3 until t=80s, firm; waiting: c (exclusive)

# Two programs of one client have two places; what speaks for the client as a whole has one.
t=77s c acquire x firm wait
  -> waiting with ticket 4, 1 before it
  * x: c waits, ticket 4
  = x: held, exclusive; b token 3 until t=80s, firm; waiting: c (exclusive), c (exclusive)
t=77s c acquire x wait
  -> waiting with ticket 5, 2 before it
  * x: c waits, ticket 5
  = x: held, exclusive; b token 3 until t=80s, firm; waiting: c (exclusive), c (exclusive), c (exclusive)
t=77s b acquire x firm wait
  -> waiting with ticket 6, 3 before it
  * x: b waits, ticket 6
  = x: held, exclusive; b token 3 until t=80s, firm; waiting: c (exclusive), c (exclusive), c (exclusive), b (exclusive)
t=78s b release x
  -> released
  * x: token 3 of b released after 18s
  * x: granted to c, token 4, exclusive, ticket 3 after 2s
  = x: held, exclusive; c token 4 until t=108s, firm; waiting: c (exclusive), c (exclusive), b (exclusive)
