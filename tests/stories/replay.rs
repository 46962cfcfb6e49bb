//! Scripted tests of the engine on a virtual clock: each file `tests/stories/*.story` is the
//! timeline of one test.
//!
//! A line `t=TIME CLIENT VERB WORDS...` is a command, and the indented lines below it are its
//! expected results: `->` the answer, `*` each event, `+` what is remembered of each name, `=` the
//! state of each lock afterwards. `#` begins a comment. `rules WORDS...` on the first line sets
//! limits, and `hold-off=TIME` how long nothing is granted. An unknown word is an error.
//! `UPDATE=1 cargo test -p engine --test stories` writes the actual results into the files.

use engine::time::{Span, Time};
use engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT, parse_span};
use engine::{
    Acquire, Annotate, Answer, ClientId, Command, Digest, EndHoldOff, EndSession, Ends, Engine,
    Event, EventKind, Firm, Forget, Grace, Handover, HoldOff, HoldOffCause, IdempotencyKey,
    IfExists, LastHandover, LeaseKey, LeaseTerms, Leave, LeaveReason, Lifetime, LockName, LockView,
    Mode, Move, Op, OpenId, OpenSession, Outcome, Ownership, Patch, Phase, Previous, QueuePolicy,
    Release, Renew, RequestId, RequestKey, RequestNumber, Reset, ResetPart, ResetScope, Rules,
    Seats, SessionEnd, SessionId, Steal, StealReason, Tenure, TenureEnd, TextPatch, Ticket, Token,
    Ttl,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[test]
fn stories_have_the_expected_results() {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let folder = above.map(|path| path.join("tests/stories")).find(|path| path.is_dir());
    let folder = folder.expect("the package lies below the folder that has the stories");
    let entries = fs::read_dir(&folder).expect("tests/stories is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| !path.ends_with("replay.rs"));
    paths.sort();
    assert!(paths.len() >= 15, "stories are missing: {paths:?}");
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = String::new();
    for path in paths {
        assert_eq!(path.extension().and_then(|end| end.to_str()), Some("story"), "{path:?}");
        let expected = fs::read_to_string(&path).expect("stories are UTF-8");
        let came = replay(&expected).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        if expected == came {
            continue;
        }
        if update {
            fs::write(&path, came).expect("the story can be written");
        } else {
            writeln!(wrong, "{}:\n{}", path.display(), difference(&expected, &came))
                .expect("a string");
        }
    }
    assert!(
        wrong.is_empty(),
        "\n{wrong}If this is right: UPDATE=1 cargo test -p engine --test stories"
    );
}

/// Unknown words in a story are errors: a story with a typo would test nothing.
#[test]
fn unknown_words_fail() {
    for (story, why) in [
        ("t=0s a acquire x sharde", "unknown word 'sharde'"),
        ("t=0s a grab x", "unknown verb 'grab'"),
        ("t=0s a acquire x ttl=5", "ttl='5'"),
        ("t=0s a acquire x ttl=5s ttl=6s", "unknown word 'ttl'"),
        ("t=0 a settle", "t='0'"),
        ("t=0s a acquire", "a name is missing"),
        ("at=0s a settle", "no such line"),
        ("t=0s a leave x ticket=7", "ticket 7 was never given"),
        ("t=0s a settle\nrules locks=1", "rules come first"),
    ] {
        let said = replay(story).expect_err(story);
        assert!(said.contains(why), "{story:?} said {said:?}, not {why:?}");
    }
}

/// Returns the first line in which the expected and the actual text differ.
fn difference(expected: &str, came: &str) -> String {
    let (mut old, mut new) = (expected.lines(), came.lines());
    for number in 1.. {
        let (old, new) = (old.next(), new.next());
        if old != new || old.is_none() {
            let (old, new) = (old.unwrap_or("(the end)"), new.unwrap_or("(the end)"));
            return format!("line {number}\n  expected: {old}\n  came: {new}");
        }
    }
    unreachable!("texts end")
}

/// Executes the commands of a story, and returns the story with the actual results below them.
fn replay(story: &str) -> Result<String, String> {
    let mut stage = Stage::default();
    let mut text = String::new();
    for (number, line) in (1..).zip(story.lines()) {
        let at = |why: String| format!("line {number}: {why}");
        if line.starts_with("  ") {
            continue;
        }
        text += line;
        text += "\n";
        if line.starts_with("t=") {
            text += &stage.play(line).map_err(at)?;
        } else if let Some(words) = line.strip_prefix("rules ") {
            stage.set_rules(words).map_err(at)?;
        } else if !line.is_empty() && !line.starts_with('#') {
            return Err(at(format!("no such line: {line}")));
        }
    }
    Ok(text)
}

/// The engine that executes a story. Commands of the story can refer to earlier queue places by
/// their tickets.
#[derive(Default)]
struct Stage {
    engine: Engine,
    tickets: BTreeMap<u64, Ticket>,
    played: bool,
}

impl Stage {
    fn set_rules(&mut self, line: &str) -> Result<(), String> {
        if self.played {
            return Err("rules come first".to_owned());
        }
        let mut words = Words::new(line);
        let mut rules = Rules::default();
        for (key, limit) in [
            ("locks", &mut rules.locks_max),
            ("waiters", &mut rules.waiters_max),
            ("holders", &mut rules.holders_max),
            ("sessions", &mut rules.sessions_max),
            ("requests", &mut rules.requests_max),
        ] {
            if let Some(max) = words.number(key)? {
                *limit = usize::try_from(max).map_err(|_| "too great a limit")?;
            }
        }
        rules.requests_kept = words.span("requests-kept")?.unwrap_or(rules.requests_kept);
        rules.steal_grace = words.span("steal-grace")?.unwrap_or(rules.steal_grace);
        self.engine = Engine::new(rules);
        if let Some(span) = words.span("hold-off")? {
            let (until, cause) = (Time::ZERO + span, HoldOffCause::Restored);
            self.engine.begin_hold_off(HoldOff { until, cause });
        }
        words.end()
    }

    /// Executes one command of a story; returns its results as the lines to write below it.
    fn play(&mut self, line: &str) -> Result<String, String> {
        self.played = true;
        let mut words = Words::new(line);
        let at = Time::ZERO + words.span("t")?.ok_or("when?")?;
        let client = words.bare().ok_or("who?")?;
        let client = parse_client(&client)?;
        let verb = words.bare().ok_or("what?")?;
        let key = words.value("request").map(|key| key.as_str().into());
        let key = words.request_number()?.map(RequestKey::Number).or(key);
        let answered_below = words.number("answered-below")?.unwrap_or(0);
        let caller = client.as_str().into();
        let op = self.op(&verb, client, &mut words)?;
        words.end()?;
        let request = key.map(|key| request_of(caller, key, &op));
        let mut events = vec![];
        let command = Command { answered_below, ..Command::from(op).with_request(request) };
        let answer = self.engine.apply(at, &command, &mut events);
        self.engine.check();
        let mut text = format!("  -> {}\n", say_answer(&answer));
        for event in &events {
            if let EventKind::Joined { ticket, .. } = &event.what {
                self.tickets.insert(ticket.as_u64(), *ticket);
            }
            writeln!(text, "  * {}", say_event(event)).expect("a string takes all");
        }
        let now = self.engine.clock();
        let views: Vec<_> = self.engine.list("", None, usize::MAX, now).collect();
        for known in self.engine.remembered_names() {
            let previous = self.engine.view(&known.name, now).previous.expect("it is remembered");
            writeln!(text, "  + {}: {}", known.name, say_previous(&previous)).expect("a string");
        }
        for view in &views {
            writeln!(text, "  = {}", say_view(view)).expect("a string takes all");
        }
        if views.is_empty() {
            text += "  = all free\n";
        }
        Ok(text)
    }

    fn op(&self, verb: &str, client: ClientId, words: &mut Words) -> Result<Op, String> {
        Ok(match verb {
            "settle" => Op::Settle,
            "acquire" => Op::Acquire(acquire(client, words)?),
            "renew" => {
                let firm = if words.flag("firm") { Firm::Make } else { Firm::Keep };
                let (key, term) = (key(client, words)?, words.term()?);
                let acquires = words.flag("acquires");
                Op::Renew(Renew { key, term, firm, patch: words.patch(), acquires })
            }
            "annotate" => {
                let key = key(client, words)?;
                let (patch, handover) = (words.patch(), words.handover()?);
                Op::Annotate(Annotate { key, patch, handover })
            }
            "release" => {
                let key = key(client, words)?;
                let acquisition = words.parsed("acquisition", |text| text.parse().ok())?;
                let (open, handover) = (words.open_file()?, words.handover()?);
                let acknowledges = words.flag("lost");
                Op::Release(Release { key, acquisition, open, handover, acknowledges })
            }
            "leave" => {
                let name = words.name()?;
                let number = words.number("ticket")?.ok_or("which ticket?")?;
                let ticket = self.tickets.get(&number).copied();
                let ticket = ticket.ok_or(format!("ticket {number} was never given"))?;
                let why = if words.flag("gone") { LeaveReason::Gone } else { LeaveReason::Asked };
                Op::Leave(Leave { name, ticket, why })
            }
            "move" => {
                let from = key(client, words)?;
                let to = parse_name(&words.value("to").ok_or("where to?")?)?;
                let over =
                    if words.flag("noreplace") { IfExists::Refuse } else { IfExists::Replace };
                Op::Move(Move { from, to, over })
            }
            "steal" => {
                let name = words.name()?;
                let reason = words.reason()?;
                let term = words.term()?.unwrap_or(LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT));
                let (patch, at_once) = (words.patch(), words.flag("now"));
                let only = words.number("only")?.map(Token::named);
                Op::Steal(Steal { name, only, client, reason, term, patch, at_once })
            }
            "reset" => Op::Reset(reset(client, words)?),
            "grant-now" => Op::EndHoldOff(EndHoldOff { by: client, reason: words.reason()? }),
            "forget" => Op::Forget(Forget { name: words.name()?, by: client }),
            "open" => {
                let ttl = words.ttl()?.unwrap_or(TTL_DEFAULT);
                let ttl = (!words.flag("unending")).then_some(ttl);
                let grace = words.grace()?.unwrap_or(GRACE_DEFAULT);
                Op::OpenSession(OpenSession { client, ttl, grace })
            }
            "keep" => Op::KeepAlive(words.session()?.ok_or("which session?")?),
            "end" => {
                let session = words.session()?.ok_or("which session?")?;
                let end = match (words.flag("expired"), words.flag("revoked")) {
                    (true, _) => SessionEnd::Expired,
                    (false, true) => SessionEnd::Revoked,
                    (false, false) => SessionEnd::Closed,
                };
                Op::EndSession(EndSession { session, end })
            }
            _ => return Err(format!("unknown verb '{verb}'")),
        })
    }
}

/// Returns the idempotency key of a command line. Its digest covers everything in the line except
/// the time.
fn request_of(caller: Arc<str>, key: RequestKey, op: &Op) -> IdempotencyKey {
    let digest = format!("{op:?}")
        .bytes()
        .fold(7, |hash: u128, byte| hash.wrapping_mul(31).wrapping_add(u128::from(byte)));
    IdempotencyKey { id: RequestId { caller, key }, digest: Digest(digest) }
}

fn acquire(client: ClientId, words: &mut Words) -> Result<Acquire, String> {
    let name = words.name()?;
    let mode = match (words.number("seats")?, words.flag("shared")) {
        (Some(max), _) => Mode::Seats(Seats::new(max)?),
        (None, true) => Mode::Shared,
        (None, false) => Mode::Exclusive,
    };
    let line = match words.span("wait")? {
        Some(patience) => QueuePolicy::Join(Some(patience)),
        None if words.flag("wait") => QueuePolicy::Join(None),
        None => QueuePolicy::Skip,
    };
    let (hold, patch) = (words.hold()?, words.patch());
    let of_file = match hold {
        Ownership::OpenFile(open) => Some(LeaseTerms::Session(open.session)),
        Ownership::Client | Ownership::Exclusive(_) => None,
    };
    let term = words.term()?.or(of_file).unwrap_or(LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT));
    let takes_over = words.number("over")?.map(Token::named);
    let remember = words.flag("remember");
    let acquire = Acquire::new(name, client, term);
    Ok(Acquire { mode, hold, line, patch, takes_over, remember, ..acquire })
}

fn key(client: ClientId, words: &mut Words) -> Result<LeaseKey, String> {
    let name = words.name()?;
    Ok(LeaseKey { name, client, token: words.number("token")?.map(Token::named) })
}

/// Parses a reset, or a part of one.
fn reset(client: ClientId, words: &mut Words) -> Result<Reset, String> {
    let reason = words.reason()?;
    let whose = match (words.value("of"), words.value("keep")) {
        (Some(one), _) => ResetScope::Of(parse_client(&one)?),
        (None, Some(kept)) => {
            let kept: Result<_, _> = kept.split(',').map(parse_client).collect();
            ResetScope::AllBut(kept?)
        }
        (None, None) => ResetScope::AllBut(vec![]),
    };
    let part = match (words.value("from"), words.value("to")) {
        (Some(first), Some(last)) => ResetPart::Names(parse_name(&first)?, parse_name(&last)?),
        _ => ResetPart::Rest {
            holds: words.number("holds")?.unwrap_or_default() as usize,
            waits: words.number("waits")?.unwrap_or_default() as usize,
        },
    };
    Ok(Reset { part, whose, by: client, reason })
}

fn parse_client(text: &str) -> Result<ClientId, String> {
    ClientId::parse(text).map_err(|why| why.to_string())
}

fn parse_name(text: &str) -> Result<LockName, String> {
    LockName::parse(text).map_err(|why| format!("'{text}': {why}"))
}

/// Parses `SESSION.NUMBER`, the id of an open file: the id of its session, and the number that the
/// session has given the file.
fn open_id(text: &str) -> Option<OpenId> {
    let (session, number) = text.split_once('.')?;
    let session = SessionId::named(session.parse().ok()?);
    Some(OpenId { session, number: number.parse().ok()? })
}

/// The words of a command line that have not been parsed yet.
struct Words(Vec<String>);

impl Words {
    fn new(line: &str) -> Self {
        Self(line.split_whitespace().map(str::to_owned).collect())
    }

    fn end(self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(format!("unknown word '{}'", word.split('=').next().unwrap_or(word))),
        }
    }

    /// Removes and returns the next word that is not an option.
    fn bare(&mut self) -> Option<String> {
        let place = self.0.iter().position(|word| !word.contains('='))?;
        Some(self.0.remove(place))
    }

    fn name(&mut self) -> Result<LockName, String> {
        parse_name(&self.bare().ok_or("a name is missing")?)
    }

    fn flag(&mut self, flag: &str) -> bool {
        let place = self.0.iter().position(|word| word == flag);
        place.map(|place| self.0.remove(place)).is_some()
    }

    fn value(&mut self, key: &str) -> Option<String> {
        let is_key = |word: &String| word.split_once('=').is_some_and(|(k, _)| k == key);
        let place = self.0.iter().position(is_key)?;
        self.0.remove(place).split_once('=').map(|(_, value)| value.to_owned())
    }

    fn parsed<T>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.value(key) else { return Ok(None) };
        parse(&value).map(Some).ok_or(format!("{key}='{value}' can't be read"))
    }

    fn reason(&mut self) -> Result<StealReason, String> {
        let reason = self.value("reason").ok_or("for which reason?")?;
        StealReason::parse(&reason).ok_or_else(|| "no reason".to_owned())
    }

    fn number(&mut self, key: &str) -> Result<Option<u64>, String> {
        self.parsed(key, |text| text.parse().ok())
    }

    fn span(&mut self, key: &str) -> Result<Option<Span>, String> {
        self.parsed(key, |text| parse_span(text).ok())
    }

    fn ttl(&mut self) -> Result<Option<Ttl>, String> {
        self.parsed("ttl", |text| Ttl::parse(text).ok())
    }

    fn grace(&mut self) -> Result<Option<Grace>, String> {
        self.parsed("grace", |text| Grace::parse(text).ok())
    }

    fn session(&mut self) -> Result<Option<SessionId>, String> {
        Ok(self.number("session")?.map(SessionId::named))
    }

    /// Parses what keeps a lease alive: a ttl and a grace period (`ttl=30s grace=5s`), or a session
    /// (`session=1`).
    fn term(&mut self) -> Result<Option<LeaseTerms>, String> {
        let (ttl, grace, session) = (self.ttl()?, self.grace()?, self.session()?);
        match (ttl, grace, session) {
            (None, None, None) => Ok(None),
            (None, None, Some(id)) => Ok(Some(LeaseTerms::Session(id))),
            (_, _, Some(_)) => Err("a session and a ttl".to_owned()),
            (ttl, grace, None) => {
                let (ttl, grace) = (ttl.unwrap_or(TTL_DEFAULT), grace.unwrap_or(GRACE_DEFAULT));
                Ok(Some(LeaseTerms::Own(ttl, grace)))
            }
        }
    }

    /// Parses `number=SESSION.NUMBER`: a session, and the number of the request among the requests
    /// of that session, by which the engine recognizes copies.
    fn request_number(&mut self) -> Result<Option<RequestNumber>, String> {
        self.parsed("number", |text| {
            let (session, number) = text.split_once('.')?;
            let session = SessionId::named(session.parse().ok()?);
            Some(RequestNumber { session, number: number.parse().ok()? })
        })
    }

    /// Parses the owner of a lease: an open file (`file=SESSION.FILE`), one program of the client
    /// (`firm`, or `firm=SESSION.FILE` if the open file with that id created the lease), or
    /// otherwise the client as a whole.
    fn hold(&mut self) -> Result<Ownership, String> {
        if let Some(open) = self.open_file()? {
            return Ok(Ownership::OpenFile(open));
        }
        if let Some(maker) = self.parsed("firm", open_id)? {
            return Ok(Ownership::Exclusive(Some(maker)));
        }
        Ok(if self.flag("firm") { Ownership::Exclusive(None) } else { Ownership::Client })
    }

    fn open_file(&mut self) -> Result<Option<OpenId>, String> {
        self.parsed("file", open_id)
    }

    /// Parses a handover, `handover=COUNTER:TEXT`.
    fn handover(&mut self) -> Result<Option<Handover>, String> {
        self.parsed("handover", |text| {
            let (counter, text) = text.split_once(':')?;
            Some(Handover { text: text.into(), counter: counter.parse().ok()? })
        })
    }

    fn patch(&mut self) -> Patch {
        let text = self.value("text").map(|text| TextPatch::Set(text.into_bytes().into()));
        Patch { note: self.value("note").map(Into::into), text, ..Patch::default() }
    }
}

/// Formats a time in seconds, with as many decimals as needed.
fn moment(at: Time) -> String {
    let (secs, nanos) = (at.as_nanos() / 1_000_000_000, at.as_nanos() % 1_000_000_000);
    if nanos == 0 {
        return format!("t={secs}s");
    }
    let nanos = format!("{nanos:09}");
    format!("t={secs}.{}s", nanos.trim_end_matches('0'))
}

fn say_answer(answer: &Answer) -> String {
    match answer {
        Err(refusal) => format!("refused, {}: {refusal}", refusal.kind().as_str()),
        Ok(Outcome::Settled) => "settled".to_owned(),
        Ok(Outcome::Granted(tenure)) => format!("granted {}", say_tenure(tenure)),
        Ok(Outcome::Renewed(tenure)) => format!("renewed {}", say_tenure(tenure)),
        Ok(Outcome::Moved(tenure)) => format!("moved {}", say_tenure(tenure)),
        Ok(Outcome::Stolen(tenure)) => {
            format!("stolen {}, begins {}", say_tenure(tenure), moment(tenure.acquired_at))
        }
        Ok(Outcome::Waiting { ticket, before }) => {
            format!("waiting with ticket {}, {before} before it", ticket.as_u64())
        }
        Ok(Outcome::Released) => "released".to_owned(),
        Ok(Outcome::Left) => "left".to_owned(),
        Ok(Outcome::Annotated) => "annotated".to_owned(),
        Ok(Outcome::SessionOpened(id)) => format!("session {id} opened"),
        Ok(Outcome::KeptAlive(Time::NEVER)) => "kept for good".to_owned(),
        Ok(Outcome::KeptAlive(until)) => format!("kept until {}", moment(*until)),
        Ok(Outcome::SessionEnded) => "session ended".to_owned(),
        Ok(Outcome::Reset { holds, waits }) => format!("reset {holds} holds, {waits} places"),
        Ok(Outcome::ResetPart { holds, waits }) => {
            format!("reset {holds} holds, {waits} places in this part")
        }
        Ok(Outcome::Forgotten) => "forgotten".to_owned(),
        Ok(Outcome::HoldOffEnded) => "locks are granted".to_owned(),
        Ok(Outcome::Replayed(replay)) => {
            let first = say_answer(&Ok(replay.first.clone()));
            format!("replayed from {}: {first}", moment(replay.at))
        }
    }
}

fn say_tenure(tenure: &Tenure) -> String {
    let token = tenure.token;
    let text = match tenure.life {
        Lifetime::Own { expires_at, .. } => format!("token {token} until {}", moment(expires_at)),
        Lifetime::Session(id) => format!("token {token} with session {id}"),
    };
    match &tenure.previous {
        Some(previous) => format!("{text}, {}", say_previous(previous)),
        None => text,
    }
}

fn say_previous(previous: &Previous) -> String {
    let Previous { seq, last } = previous;
    let Some(LastHandover { token, client, at, end, handover }) = last else {
        return format!("grant {seq} without a handover");
    };
    let Handover { text, counter } = handover;
    let at = at.map_or_else(|| "some time".to_owned(), moment);
    let of = format!("of {client}, token {token}, {at}, {}", end.as_str());
    format!("grant {seq} after handover {counter}:{text} {of}")
}

fn say_event(event: &Event) -> String {
    match &event.what {
        EventKind::Granted { name, holder, token, mode, waited, .. } => {
            let mut text = format!("{name}: granted to {holder}, token {token}, {}", mode.as_str());
            if let Some((ticket, span)) = waited {
                write!(text, ", ticket {} after {span}", ticket.as_u64()).expect("a string");
            }
            text
        }
        EventKind::Renewed { name, holder, token } => {
            format!("{name}: renewed by {holder}, token {token}")
        }
        EventKind::Annotated { name, token } => format!("{name}: annotated, token {token}"),
        EventKind::Expired { name, holder, token } => {
            format!("{name}: expired, token {token} of {holder}")
        }
        EventKind::Ended { name, holder, token, held, end } => {
            format!("{name}: token {token} of {holder} {} after {held}", say_end(end))
        }
        EventKind::Joined { name, client, ticket } => {
            format!("{name}: {client} waits, ticket {}", ticket.as_u64())
        }
        EventKind::Left { name, client, ticket, why } => {
            let why = match why {
                LeaveReason::Asked => "as it asked to",
                LeaveReason::Gone => "being gone",
                LeaveReason::TimedOut => "out of patience",
                LeaveReason::SessionOver => "its session being over",
                LeaveReason::Reset => "being reset",
            };
            format!("{name}: {client} left, ticket {}, {why}", ticket.as_u64())
        }
        EventKind::SessionOpened { session, client } => {
            format!("session {session} of {client} opened")
        }
        EventKind::SessionKept { session } => format!("session {session} kept alive"),
        EventKind::SessionOver { session, client, end } => match end {
            SessionEnd::Closed => format!("session {session} of {client} closed"),
            SessionEnd::Expired => format!("session {session} of {client} expired"),
            SessionEnd::Revoked => format!("session {session} of {client} revoked"),
        },
        EventKind::HoldOffEnded { by: None } => "the hold-off is over".to_owned(),
        EventKind::HoldOffEnded { by: Some(EndHoldOff { by, reason }) } => {
            format!("the hold-off was ended by {by} ({})", reason.as_str())
        }
    }
}

fn say_end(end: &TenureEnd) -> String {
    match end {
        TenureEnd::Released => "released".to_owned(),
        TenureEnd::Lapsed => "lapsed".to_owned(),
        TenureEnd::Moved { to } => format!("moved to {to}"),
        TenureEnd::Replaced => "replaced".to_owned(),
        TenureEnd::Stolen { by, reason } => format!("stolen by {by} ({})", reason.as_str()),
    }
}

fn say_view(view: &LockView) -> String {
    let mut text = format!("{}: {}, {}", view.name, view.phase().as_str(), view.mode.as_str());
    if let Some(seats) = view.mode.seats() {
        write!(text, " of {seats}").expect("a string");
    }
    for holder in &view.holders {
        let lease = &holder.lease;
        write!(text, "; {} token {} ", lease.holder, lease.token).expect("a string");
        text += &say_ends(&holder.ends, view.at);
        if let Some(seat) = lease.seat {
            write!(text, ", seat {seat}").expect("a string");
        }
        match lease.hold {
            Ownership::Client => {}
            Ownership::Exclusive(None) => text += ", firm",
            Ownership::Exclusive(Some(open)) | Ownership::OpenFile(open) => {
                let kind =
                    if matches!(lease.hold, Ownership::OpenFile(_)) { "file" } else { "firm by" };
                let OpenId { session, number } = open;
                write!(text, ", {kind} {session}.{number}").expect("a string");
            }
        }
        if let Some(note) = lease.details.note() {
            write!(text, ", note {note}").expect("a string");
        }
    }
    let waiters = view.waiters.iter().map(|w| format!("{} ({})", w.client, w.mode.as_str()));
    let waiters: Vec<_> = waiters.collect();
    if waiters.is_empty() { text } else { format!("{text}; waiting: {}", waiters.join(", ")) }
}

fn say_ends(ends: &Ends, now: Time) -> String {
    match ends.phase(now) {
        _ if ends.expires_at == Time::NEVER => "for good".to_owned(),
        Phase::Held => format!("until {}", moment(ends.expires_at)),
        Phase::Grace => format!("in grace until {}", moment(ends.grace_until)),
        Phase::Free => "free".to_owned(),
    }
}
