# Four ids are remembered. The next one takes the place of the oldest id of the client that has the most.
rules requests=4 requests-kept=60s
t=0s a acquire x request=one
  -> granted token 1 until t=30s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=30s
t=1s b acquire y request=one
  -> granted token 2 until t=31s
  * y: granted to b, token 2, exclusive
  = x: held, exclusive; a token 1 until t=30s
  = y: held, exclusive; b token 2 until t=31s
t=2s a release x request=two
  -> released
  * x: token 1 of a released after 2s
  = y: held, exclusive; b token 2 until t=31s
t=3s a acquire x request=three
  -> granted token 3 until t=33s
  * x: granted to a, token 3, exclusive
  = x: held, exclusive; a token 3 until t=33s
  = y: held, exclusive; b token 2 until t=31s
t=4s a release x request=four
  -> released
  * x: token 3 of a released after 1s
  = y: held, exclusive; b token 2 until t=31s
# a has forgotten its first id and knows the later ones; b knows its own.
t=5s a release x request=two
  -> replayed from t=2s: released
  = y: held, exclusive; b token 2 until t=31s
t=5s b acquire y request=one
  -> replayed from t=1s: granted token 2 until t=31s
  = y: held, exclusive; b token 2 until t=31s
t=5s a acquire x request=one
  -> granted token 4 until t=35s
  * x: granted to a, token 4, exclusive
  = x: held, exclusive; a token 4 until t=35s
  = y: held, exclusive; b token 2 until t=31s
# a has three of the four, so the ids of b and of c take the place of those.
t=6s b release y request=two
  -> released
  * y: token 2 of b released after 5s
  = x: held, exclusive; a token 4 until t=35s
t=7s c acquire z request=one
  -> granted token 5 until t=37s
  * z: granted to c, token 5, exclusive
  = x: held, exclusive; a token 4 until t=35s
  = z: held, exclusive; c token 5 until t=37s
t=8s a release x request=four
  -> replayed from t=4s: released
  = x: held, exclusive; a token 4 until t=35s
  = z: held, exclusive; c token 5 until t=37s
t=8s a acquire x request=one
  -> replayed from t=5s: granted token 4 until t=35s
  = x: held, exclusive; a token 4 until t=35s
  = z: held, exclusive; c token 5 until t=37s
t=8s b acquire y request=one
  -> granted token 6 until t=38s
  * y: granted to b, token 6, exclusive
  = x: held, exclusive; a token 4 until t=35s
  = y: held, exclusive; b token 6 until t=38s
  = z: held, exclusive; c token 5 until t=37s
t=8s b release y request=two
  -> replayed from t=6s: released
  = x: held, exclusive; a token 4 until t=35s
  = y: held, exclusive; b token 6 until t=38s
  = z: held, exclusive; c token 5 until t=37s
# Each has as much as others or less: the own oldest goes.
t=9s b acquire y request=three
  -> renewed token 6 until t=39s
  * y: renewed by b, token 6
  = x: held, exclusive; a token 4 until t=35s
  = y: held, exclusive; b token 6 until t=39s
  = z: held, exclusive; c token 5 until t=37s
t=9s b acquire y request=one
  -> replayed from t=8s: granted token 6 until t=38s
  = x: held, exclusive; a token 4 until t=35s
  = y: held, exclusive; b token 6 until t=39s
  = z: held, exclusive; c token 5 until t=37s

# Ids that wait stay. Those of one client take at most half of what those of the others leave.
t=70s d acquire v
  -> granted token 7 until t=100s
  * x: expired, token 4 of a
  * z: expired, token 5 of c
  * y: expired, token 6 of b
  * x: token 4 of a lapsed after 1m5s
  * z: token 5 of c lapsed after 1m3s
  * y: token 6 of b lapsed after 1m2s
  * v: granted to d, token 7, exclusive
  = v: held, exclusive; d token 7 until t=100s
t=71s a acquire v wait request=five
  -> waiting with ticket 1, 0 before it
  * v: a waits, ticket 1
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive)
t=71s a acquire w wait request=six
  -> granted token 8 until t=101s
  * w: granted to a, token 8, exclusive
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=71s a acquire v firm wait request=seven
  -> waiting with ticket 2, 1 before it
  * v: a waits, ticket 2
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=71s a acquire v firm wait
  -> waiting with ticket 3, 2 before it
  * v: a waits, ticket 3
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=71s b acquire v wait request=five
  -> waiting with ticket 4, 3 before it
  * v: b waits, ticket 4
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=71s c acquire v wait request=five
  -> refused, E_LIMIT: too many queued requests have an id, of which 4 can be remembered; leave a queue, or try again later
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
# Final answers share the rest.
t=72s c settle request=six
  -> settled
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=72s c settle request=seven
  -> settled
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=73s c settle request=six
  -> settled
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=73s c settle request=seven
  -> settled
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=74s b acquire v wait request=five
  -> replayed from t=71s: waiting with ticket 4, 3 before it
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
t=74s a acquire v wait request=five
  -> replayed from t=71s: waiting with ticket 1, 0 before it
  = v: held, exclusive; d token 7 until t=100s; waiting: a (exclusive), a (exclusive), a (exclusive), b (exclusive)
  = w: held, exclusive; a token 8 until t=101s
