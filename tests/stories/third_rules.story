# Commands of the version before, which refuses every new id while the table of ids is full.
rules requests=2 requests-kept=10s
t=0s a acquire x request=one third-rules
  -> granted token 1 until t=30s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=30s
t=3s b acquire x request=one third-rules
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by a for 27s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; a token 1 until t=30s
t=4s a release x request=two third-rules
  -> released
  * x: token 1 of a released after 4s
  = all free
t=4s c acquire y request=three third-rules
  -> refused, E_LIMIT: 2 request ids are remembered, which is the limit; leave a queue, or try again later
  = all free
t=4s d acquire x wait request=four third-rules
  -> refused, E_LIMIT: 2 request ids are remembered, which is the limit; leave a queue, or try again later
  = all free
# Without an id the command is carried out.
t=5s c acquire y
  -> granted token 2 until t=35s
  * y: granted to c, token 2, exclusive
  = y: held, exclusive; c token 2 until t=35s
# A known id gets its answer, and a new one is accepted when an older one has had its time.
t=6s a acquire x request=one third-rules
  -> replayed from t=0s: granted token 1 until t=30s
  = y: held, exclusive; c token 2 until t=35s
t=10s c acquire z request=three third-rules
  -> granted token 3 until t=40s
  * z: granted to c, token 3, exclusive
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
# Requests of one client that wait may take up all ids.
t=30s e acquire v
  -> granted token 4 until t=60s
  * v: granted to e, token 4, exclusive
  = v: held, exclusive; e token 4 until t=60s
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=30s a acquire v wait request=five third-rules
  -> waiting with ticket 1, 0 ahead
  * v: a waits, ticket 1
  = v: held, exclusive; e token 4 until t=60s; waiting: a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=30s a acquire v firm wait request=six third-rules
  -> waiting with ticket 2, 1 ahead
  * v: a waits, ticket 2
  = v: held, exclusive; e token 4 until t=60s; waiting: a (exclusive), a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=31s b acquire v wait request=five third-rules
  -> refused, E_LIMIT: 2 request ids are remembered, which is the limit; leave a queue, or try again later
  = v: held, exclusive; e token 4 until t=60s; waiting: a (exclusive), a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=31s b settle request=six third-rules
  -> refused, E_LIMIT: 2 request ids are remembered, which is the limit; leave a queue, or try again later
  = v: held, exclusive; e token 4 until t=60s; waiting: a (exclusive), a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=32s a acquire v wait request=five third-rules
  -> replayed from t=30s: waiting with ticket 1, 0 ahead
  = v: held, exclusive; e token 4 until t=60s; waiting: a (exclusive), a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
# Under the fourth rules, a request that could wait is refused then, and so is each other new id.
t=33s b acquire v wait request=five
  -> refused, E_LIMIT: too many queued requests have an id, of which 2 can be remembered; leave a queue, or try again later
  = v: held, exclusive; e token 4 until t=60s; waiting: a (exclusive), a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=33s b settle request=six
  -> refused, E_LIMIT: too many queued requests have an id, of which 2 can be remembered; leave a queue, or try again later
  = v: held, exclusive; e token 4 until t=60s; waiting: a (exclusive), a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
# The fourth rules put a new id in the place of a final one; the third rules refuse it.
t=34s e release v
  -> released
  * v: token 4 of e released after 4s
  * v: granted to a, token 5, exclusive, ticket 1 after 4s
  = v: held, exclusive; a token 5 until t=64s; waiting: a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=34s b settle request=six third-rules
  -> refused, E_LIMIT: 2 request ids are remembered, which is the limit; leave a queue, or try again later
  = v: held, exclusive; a token 5 until t=64s; waiting: a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=34s b settle request=six
  -> settled
  = v: held, exclusive; a token 5 until t=64s; waiting: a (exclusive)
  = y: held, exclusive; c token 2 until t=35s
  = z: held, exclusive; c token 3 until t=40s
t=35s b settle request=seven third-rules
  -> refused, E_LIMIT: 2 request ids are remembered, which is the limit; leave a queue, or try again later
  * y: expired, token 2 of c
  = v: held, exclusive; a token 5 until t=64s; waiting: a (exclusive)
  = y: grace, exclusive; c token 2 in grace until t=40s
  = z: held, exclusive; c token 3 until t=40s
