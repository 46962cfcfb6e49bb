# What is remembered of a name beyond a tenure: the last handover, by which client, and how that tenure ended.
t=0s ann acquire x remember
  -> granted token 1 until t=30s, grant 1 without a handover
  * x: granted to ann, token 1, exclusive
  + x: grant 1 without a handover
  = x: held, exclusive; ann token 1 until t=30s
t=1s ann annotate x handover=1:dirty
  -> refused, E_INVALID: a handover of lock 'x' names the token of its tenure; add the token that the grant told
  + x: grant 1 without a handover
  = x: held, exclusive; ann token 1 until t=30s
t=1s ann annotate x token=1 handover=2:dirty
  -> annotated
  * x: annotated, token 1
  + x: grant 1 after handover 2:dirty of ann, token 1, t=1s, open
  = x: held, exclusive; ann token 1 until t=30s
t=2s ann annotate x token=1 handover=2:clean
  -> refused, E_FENCING_MISMATCH: handover 2 of lock 'x' comes after handover 2 of the same tenure, and is not set; number them upwards
  + x: grant 1 after handover 2:dirty of ann, token 1, t=1s, open
  = x: held, exclusive; ann token 1 until t=30s
t=2s ann annotate x token=1 handover=3:clean note=done
  -> annotated
  * x: annotated, token 1
  + x: grant 1 after handover 3:clean of ann, token 1, t=2s, open
  = x: held, exclusive; ann token 1 until t=30s, note done
t=3s bob acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by ann for 27s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  + x: grant 1 after handover 3:clean of ann, token 1, t=2s, open
  = x: held, exclusive; ann token 1 until t=30s, note done
t=4s ann release x
  -> released
  * x: token 1 of ann released after 4s
  + x: grant 1 after handover 3:clean of ann, token 1, t=2s, released
  = all free
# A tenure that sets none leaves it as it was.
t=5s bob acquire x ttl=10s
  -> granted token 2 until t=15s, grant 2 after handover 3:clean of ann, token 1, t=2s, released
  * x: granted to bob, token 2, exclusive
  + x: grant 2 after handover 3:clean of ann, token 1, t=2s, released
  = x: held, exclusive; bob token 2 until t=15s
t=15s bob settle
  -> settled
  * x: expired, token 2 of bob
  + x: grant 2 after handover 3:clean of ann, token 1, t=2s, released
  = x: grace, exclusive; bob token 2 in grace until t=20s
t=20s bob settle
  -> settled
  * x: token 2 of bob lapsed after 15s
  + x: grant 2 after handover 3:clean of ann, token 1, t=2s, released
  = all free
# A tenure that expires.
t=21s cy acquire x ttl=10s
  -> granted token 3 until t=31s, grant 3 after handover 3:clean of ann, token 1, t=2s, released
  * x: granted to cy, token 3, exclusive
  + x: grant 3 after handover 3:clean of ann, token 1, t=2s, released
  = x: held, exclusive; cy token 3 until t=31s
t=22s cy annotate x token=3 handover=1:dirty
  -> annotated
  * x: annotated, token 3
  + x: grant 3 after handover 1:dirty of cy, token 3, t=22s, open
  = x: held, exclusive; cy token 3 until t=31s
t=40s root settle
  -> settled
  * x: expired, token 3 of cy
  * x: token 3 of cy lapsed after 19s
  + x: grant 3 after handover 1:dirty of cy, token 3, t=22s, expired
  = all free
# A late copy of an old request, under an old token.
t=41s dan acquire x ttl=60s
  -> granted token 4 until t=101s, grant 4 after handover 1:dirty of cy, token 3, t=22s, expired
  * x: granted to dan, token 4, exclusive
  + x: grant 4 after handover 1:dirty of cy, token 3, t=22s, expired
  = x: held, exclusive; dan token 4 until t=101s
t=41s cy annotate x token=3 handover=2:clean
  -> refused, E_FENCING_MISMATCH: token 3 of lock 'x' is not the current one (4); stop the work that it guarded: another tenure has begun
  + x: grant 4 after handover 1:dirty of cy, token 3, t=22s, expired
  = x: held, exclusive; dan token 4 until t=101s
t=41s dan annotate x token=4 handover=0:dirty
  -> annotated
  * x: annotated, token 4
  + x: grant 4 after handover 0:dirty of dan, token 4, t=41s, open
  = x: held, exclusive; dan token 4 until t=101s
t=42s root forget x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by dan for 59s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  + x: grant 4 after handover 0:dirty of dan, token 4, t=41s, open
  = x: held, exclusive; dan token 4 until t=101s
t=42s root steal x reason=he-has-left now
  -> stolen token 5 until t=73s, grant 5 after handover 0:dirty of dan, token 4, t=41s, unknown, begins t=43s
  * x: token 4 of dan stolen by root (he-has-left) after 1s
  * x: granted to root, token 5, exclusive
  + x: grant 5 after handover 0:dirty of dan, token 4, t=41s, unknown
  = x: held, exclusive; root token 5 until t=73s, firm
t=42.5s root annotate x token=5 handover=1:early
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 500ms more; try again then
  + x: grant 5 after handover 0:dirty of dan, token 4, t=41s, unknown
  = x: held, exclusive; root token 5 until t=73s, firm
t=44s root release x token=5 handover=1:mine
  -> released
  * x: token 5 of root released after 1s
  + x: grant 5 after handover 1:mine of root, token 5, t=44s, released
  = all free
t=45s ed open ttl=30s
  -> session 6 opened
  * session 6 of ed opened
  + x: grant 5 after handover 1:mine of root, token 5, t=44s, released
  = all free
t=45s ed acquire x session=6
  -> granted token 7 with session 6, grant 6 after handover 1:mine of root, token 5, t=44s, released
  * x: granted to ed, token 7, exclusive
  + x: grant 6 after handover 1:mine of root, token 5, t=44s, released
  = x: held, exclusive; ed token 7 until t=75s
t=45s ed annotate x token=7 handover=1:dirty
  -> annotated
  * x: annotated, token 7
  + x: grant 6 after handover 1:dirty of ed, token 7, t=45s, open
  = x: held, exclusive; ed token 7 until t=75s
t=46s ed end session=6
  -> session ended
  * x: token 7 of ed released after 1s
  * session 6 of ed closed
  + x: grant 6 after handover 1:dirty of ed, token 7, t=45s, session
  = all free
t=47s ed acquire y
  -> granted token 8 until t=77s
  * y: granted to ed, token 8, exclusive
  + x: grant 6 after handover 1:dirty of ed, token 7, t=45s, session
  = y: held, exclusive; ed token 8 until t=77s
t=47s ed release y token=8 handover=1:none
  -> refused, E_INVALID: lock 'y' has no handover, since its name is not remembered; acquire it with 'remember'
  + x: grant 6 after handover 1:dirty of ed, token 7, t=45s, session
  = y: held, exclusive; ed token 8 until t=77s
t=48s ed release y
  -> released
  * y: token 8 of ed released after 1s
  + x: grant 6 after handover 1:dirty of ed, token 7, t=45s, session
  = all free
t=49s root forget x
  -> forgotten
  * x: annotated, token 7
  = all free
t=49s root forget x
  -> forgotten
  = all free
t=50s ed acquire x
  -> granted token 9 until t=80s
  * x: granted to ed, token 9, exclusive
  = x: held, exclusive; ed token 9 until t=80s
