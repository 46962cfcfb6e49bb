# A lock with a remembered name is taken over when its holder has acknowledged that, or when its lease has expired.
t=0s ann acquire x remember ttl=30s
  -> granted token 1 until t=30s, grant 1 without a handover
  * x: granted to ann, token 1, exclusive
  + x: grant 1 without a handover
  = x: held, exclusive; ann token 1 until t=30s
t=1s root steal x reason=the-laptop-is-away ttl=10s
  -> stolen token 2 until t=40s, grant 2 without a handover, begins t=30s
  * x: token 1 of ann stolen by root (the-laptop-is-away) after 1s
  * x: granted to root, token 2, exclusive
  + x: grant 2 without a handover
  = x: held, exclusive; root token 2 until t=40s, firm
t=2s root renew x
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 28s more; try again then
  + x: grant 2 without a handover
  = x: held, exclusive; root token 2 until t=40s, firm
t=2s bob release x token=1
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (2); stop the work that it guarded: another tenure has begun
  + x: grant 2 without a handover
  = x: held, exclusive; root token 2 until t=40s, firm
# Only the old holder can say that it knows.
t=2s bob release x token=1 lost
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (2); stop the work that it guarded: another tenure has begun
  + x: grant 2 without a handover
  = x: held, exclusive; root token 2 until t=40s, firm
# A release is refused that does not know of the steal. The new lease is no shorter than was said.
t=2.5s ann release x token=1
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (2); stop the work that it guarded: another tenure has begun
  + x: grant 2 without a handover
  = x: held, exclusive; root token 2 until t=40s, firm
t=3s ann release x token=1 lost
  -> released
  * x: annotated, token 2
  + x: grant 2 without a handover
  = x: held, exclusive; root token 2 until t=40s, firm
t=3s ann release x token=1 lost
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (2); stop the work that it guarded: another tenure has begun
  + x: grant 2 without a handover
  = x: held, exclusive; root token 2 until t=40s, firm
t=4s root release x
  -> released
  * x: token 2 of root released after 1s
  + x: grant 2 without a handover
  = all free
# Nobody acknowledges it.
t=5s ann acquire x ttl=30s
  -> granted token 3 until t=35s, grant 3 without a handover
  * x: granted to ann, token 3, exclusive
  + x: grant 3 without a handover
  = x: held, exclusive; ann token 3 until t=35s
t=6s root steal x reason=the-laptop-is-away ttl=10s
  -> stolen token 4 until t=45s, grant 4 without a handover, begins t=35s
  * x: token 3 of ann stolen by root (the-laptop-is-away) after 1s
  * x: granted to root, token 4, exclusive
  + x: grant 4 without a handover
  = x: held, exclusive; root token 4 until t=45s, firm
t=34.9s root renew x
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 100ms more; try again then
  + x: grant 4 without a handover
  = x: held, exclusive; root token 4 until t=45s, firm
t=35s root renew x
  -> renewed token 4 until t=45s
  * x: renewed by root, token 4
  + x: grant 4 without a handover
  = x: held, exclusive; root token 4 until t=45s, firm
t=36s root release x
  -> released
  * x: token 4 of root released after 1s
  + x: grant 4 without a handover
  = all free
# A second steal waits for the first holder as well, whose acknowledgement counts.
t=40s ann acquire x ttl=30s
  -> granted token 5 until t=70s, grant 5 without a handover
  * x: granted to ann, token 5, exclusive
  + x: grant 5 without a handover
  = x: held, exclusive; ann token 5 until t=70s
t=41s root steal x reason=first
  -> stolen token 6 until t=100s, grant 6 without a handover, begins t=70s
  * x: token 5 of ann stolen by root (first) after 1s
  * x: granted to root, token 6, exclusive
  + x: grant 6 without a handover
  = x: held, exclusive; root token 6 until t=100s, firm
t=42s bob steal x reason=second
  -> stolen token 7 until t=100s, grant 7 without a handover, begins t=70s
  * x: token 6 of root stolen by bob (second) after 0ms
  * x: granted to bob, token 7, exclusive
  + x: grant 7 without a handover
  = x: held, exclusive; bob token 7 until t=100s, firm
t=50s root release x token=5
  -> refused, E_FENCING_MISMATCH: token 5 of lock 'x' is not the current one (7); stop the work that it guarded: another tenure has begun
  + x: grant 7 without a handover
  = x: held, exclusive; bob token 7 until t=100s, firm
t=50s ann release x token=5 lost
  -> released
  * x: annotated, token 7
  + x: grant 7 without a handover
  = x: held, exclusive; bob token 7 until t=100s, firm
t=51s bob release x
  -> released
  * x: token 7 of bob released after 1s
  + x: grant 7 without a handover
  = all free
# A client that has stolen the lock, and has released it at once, leaves it to others after the acknowledgement.
t=60s ann acquire x ttl=30s
  -> granted token 8 until t=90s, grant 8 without a handover
  * x: granted to ann, token 8, exclusive
  + x: grant 8 without a handover
  = x: held, exclusive; ann token 8 until t=90s
t=61s root steal x reason=why
  -> stolen token 9 until t=120s, grant 9 without a handover, begins t=90s
  * x: token 8 of ann stolen by root (why) after 1s
  * x: granted to root, token 9, exclusive
  + x: grant 9 without a handover
  = x: held, exclusive; root token 9 until t=120s, firm
t=61s root release x
  -> released
  + x: grant 9 without a handover
  = x: held, exclusive; root token 9 until t=90s, firm
t=62s bob acquire x wait
  -> waiting with ticket 1, 0 before it
  * x: bob waits, ticket 1
  + x: grant 9 without a handover
  = x: held, exclusive; root token 9 until t=90s, firm; waiting: bob (exclusive)
t=63s ann release x token=8 lost
  -> released
  * x: annotated, token 9
  * x: token 9 of root released after 0ms
  * x: granted to bob, token 10, exclusive, ticket 1 after 1s
  + x: grant 10 without a handover
  = x: held, exclusive; bob token 10 until t=93s
t=64s bob release x
  -> released
  * x: token 10 of bob released after 1s
  + x: grant 10 without a handover
  = all free
# Without waiting: it is not known then how the last tenure has ended.
t=70s ann acquire x ttl=30s
  -> granted token 11 until t=100s, grant 11 without a handover
  * x: granted to ann, token 11, exclusive
  + x: grant 11 without a handover
  = x: held, exclusive; ann token 11 until t=100s
t=70s ann annotate x token=11 handover=1:clean
  -> annotated
  * x: annotated, token 11
  + x: grant 11 after handover 1:clean of ann, token 11, t=70s, open
  = x: held, exclusive; ann token 11 until t=100s
t=71s root steal x reason=now now
  -> stolen token 12 until t=102s, grant 12 after handover 1:clean of ann, token 11, t=70s, unknown, begins t=72s
  * x: token 11 of ann stolen by root (now) after 1s
  * x: granted to root, token 12, exclusive
  + x: grant 12 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; root token 12 until t=102s, firm
t=72s root renew x
  -> renewed token 12 until t=102s
  * x: renewed by root, token 12
  + x: grant 12 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; root token 12 until t=102s, firm
t=73s root release x
  -> released
  * x: token 12 of root released after 1s
  + x: grant 12 after handover 1:clean of ann, token 11, t=70s, unknown
  = all free
# A reset waits as well.
t=80s ann acquire x ttl=30s
  -> granted token 13 until t=110s, grant 13 after handover 1:clean of ann, token 11, t=70s, unknown
  * x: granted to ann, token 13, exclusive
  + x: grant 13 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 13 until t=110s
t=81s root reset of=ann reason=gone
  -> reset 1 holds, 0 places
  * x: token 13 of ann stolen by root (gone) after 1s
  * x: granted to root, token 14, exclusive
  + x: grant 14 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; root token 14 until t=110s, firm
t=83s bob acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 27s more; try again then
  + x: grant 14 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; root token 14 until t=110s, firm
t=84s ann release x token=13 lost
  -> released
  * x: annotated, token 14
  * x: token 14 of root released after 0ms
  + x: grant 14 after handover 1:clean of ann, token 11, t=70s, unknown
  = all free
t=84s bob acquire x
  -> granted token 15 until t=114s, grant 15 after handover 1:clean of ann, token 11, t=70s, unknown
  * x: granted to bob, token 15, exclusive
  + x: grant 15 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; bob token 15 until t=114s
t=85s bob release x
  -> released
  * x: token 15 of bob released after 1s
  + x: grant 15 after handover 1:clean of ann, token 11, t=70s, unknown
  = all free
# Another's end of a session: the lock of a name that is not remembered is free at once.
t=90s ann open ttl=30s
  -> session 16 opened
  * session 16 of ann opened
  + x: grant 15 after handover 1:clean of ann, token 11, t=70s, unknown
  = all free
t=91s ann acquire x session=16
  -> granted token 17 with session 16, grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  * x: granted to ann, token 17, exclusive
  + x: grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 17 until t=120s
t=91s ann acquire y session=16
  -> granted token 18 with session 16
  * y: granted to ann, token 18, exclusive
  + x: grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 17 until t=120s
  = y: held, exclusive; ann token 18 until t=120s
t=92s root end session=16 revoked
  -> session ended
  * y: token 18 of ann released after 1s
  * session 16 of ann closed
  + x: grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 17 until t=120s
t=93s ann keep session=16
  -> refused, E_LOCK_EXPIRED: session 16 is over, and its leases are lost; open a new one
  + x: grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 17 until t=120s
t=94s bob acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by ann for 26s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  + x: grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 17 until t=120s
t=94s bob acquire y
  -> granted token 19 until t=124s
  * y: granted to bob, token 19, exclusive
  + x: grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 17 until t=120s
  = y: held, exclusive; bob token 19 until t=124s
t=95s ann release x token=17
  -> released
  * x: token 17 of ann released after 4s
  + x: grant 16 after handover 1:clean of ann, token 11, t=70s, unknown
  = y: held, exclusive; bob token 19 until t=124s
t=95s bob acquire x
  -> granted token 20 until t=125s, grant 17 after handover 1:clean of ann, token 11, t=70s, unknown
  * x: granted to bob, token 20, exclusive
  + x: grant 17 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; bob token 20 until t=125s
  = y: held, exclusive; bob token 19 until t=124s
t=96s bob release x
  -> released
  * x: token 20 of bob released after 1s
  + x: grant 17 after handover 1:clean of ann, token 11, t=70s, unknown
  = y: held, exclusive; bob token 19 until t=124s
t=96s bob release y
  -> released
  * y: token 19 of bob released after 2s
  + x: grant 17 after handover 1:clean of ann, token 11, t=70s, unknown
  = all free
# The same, and nobody acknowledges it.
t=100s ann open ttl=30s
  -> session 21 opened
  * session 21 of ann opened
  + x: grant 17 after handover 1:clean of ann, token 11, t=70s, unknown
  = all free
t=101s ann acquire x session=21
  -> granted token 22 with session 21, grant 18 after handover 1:clean of ann, token 11, t=70s, unknown
  * x: granted to ann, token 22, exclusive
  + x: grant 18 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 22 until t=130s
t=102s root end session=21 revoked
  -> session ended
  * session 21 of ann closed
  + x: grant 18 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 22 until t=130s
t=129.9s bob acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by ann for 100ms more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  + x: grant 18 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; ann token 22 until t=130s
t=130s bob acquire x
  -> granted token 23 until t=160s, grant 19 after handover 1:clean of ann, token 11, t=70s, unknown
  * x: token 22 of ann lapsed after 29s
  * x: granted to bob, token 23, exclusive
  + x: grant 19 after handover 1:clean of ann, token 11, t=70s, unknown
  = x: held, exclusive; bob token 23 until t=160s
