//! The last refusal of each client, for `.latchfs/why`. It is stored as values, and formatted when
//! the file is read.

use crate::engine::{
    ClientId, Conflict, LockName, LockView, Phase, Reason, Refusal, RefusalKind, Way,
};
use crate::fuse::errno::{Act, name_of};
use crate::fuse::kernel::hash_maps::Named;
use crate::fuse::kernel::values::Errno;
use crate::service::RequestError;
use crate::time::Wall;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The maximum number of clients whose last refusal is kept: more than one machine has users, at
/// 300 bytes each.
const OWNERS_MAX: usize = 1_024;

/// The component that refused a request, with its reason.
#[derive(Debug)]
pub(crate) enum RefusedBy {
    /// The lock service refused, or did not answer in time.
    Service(RequestError),
    /// The file system refused the operation itself.
    FileSystem(RefusalKind, String),
}

#[derive(Debug)]
struct LastRefused {
    at: Wall,
    act: Act,
    name: Option<LockName>,
    errno: Errno,
    said: RefusedBy,
}

#[derive(Debug, Default)]
struct OwnersLast {
    refused: Option<LastRefused>,
    /// The lock that a lookup found after the refusal. If a name exists already, the kernel itself
    /// fails `mkdir`, `ln` and the like with EEXIST, and the daemon sees only the lookup that comes
    /// before them.
    met: Option<LockName>,
    turn: u64,
}

/// The last refusal of each client.
#[derive(Debug, Default)]
pub(crate) struct LastRefusals(Mutex<ByOwner>);

#[derive(Debug, Default)]
struct ByOwner {
    /// The client and the lock of the last successful lookup, which is nearly always by the same
    /// client as the one before. Only for another client does a lookup have to update the map
    /// `owners`.
    latest: Option<(ClientId, LockName)>,
    owners: Named<ClientId, OwnersLast>,
    turns: u64,
}

/// The answer of `.latchfs/why` to a client.
pub(crate) enum Why {
    /// No request of the client was refused.
    Nothing,
    /// A request was refused; the JSON value describes the refusal.
    Refused(Value),
    /// A lookup found a lock of this name, which may be why an entry could not be created.
    Met(LockName),
}

impl LastRefusals {
    /// Records a refusal to `client`.
    pub(crate) fn refused(
        &self,
        client: &ClientId,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        said: RefusedBy,
    ) {
        let refused = LastRefused { at: Wall::now(), act, name: name.cloned(), errno, said };
        let mut kept = self.0.lock();
        kept.put_latest_away();
        let last = kept.of(client);
        last.met = None;
        last.refused = Some(refused);
    }

    /// Records that a lookup by `client` found a lock.
    pub(crate) fn met(&self, client: &ClientId, name: &LockName) {
        let mut kept = self.0.lock();
        match &mut kept.latest {
            Some((of, latest)) if of == client => *latest = name.clone(),
            _ => {
                kept.put_latest_away();
                kept.latest = Some((client.clone(), name.clone()));
            }
        }
    }

    /// Returns the last refusal of `client`, or the lock that a later lookup found.
    pub(crate) fn of(&self, client: &ClientId) -> Why {
        let mut kept = self.0.lock();
        kept.put_latest_away();
        match kept.owners.get(client) {
            Some(OwnersLast { met: Some(name), .. }) => Why::Met(name.clone()),
            Some(OwnersLast { refused: Some(refused), .. }) => {
                Why::Refused(refused.as_json(client))
            }
            _ => Why::Nothing,
        }
    }
}

impl ByOwner {
    fn put_latest_away(&mut self) {
        let Some((client, name)) = self.latest.take() else { return };
        match self.owners.get_mut(&client) {
            Some(last) => last.met = Some(name),
            None => self.of(&client).met = Some(name),
        }
    }

    fn of(&mut self, client: &ClientId) -> &mut OwnersLast {
        self.turns += 1;
        if self.owners.len() >= OWNERS_MAX && !self.owners.contains_key(client) {
            let oldest = self.owners.iter().min_by_key(|(_, last)| last.turn);
            if let Some(oldest) = oldest.map(|(client, _)| client.clone()) {
                self.owners.remove(&oldest);
            }
        }
        if !self.owners.contains_key(client) {
            self.owners.insert(client.clone(), OwnersLast::default());
        }
        let turn = self.turns;
        let last = self.owners.get_mut(client).expect("it was put there just now");
        last.turn = turn;
        last
    }
}

impl LastRefused {
    fn as_json(&self, client: &ClientId) -> Value {
        let (kind, message) = match &self.said {
            RefusedBy::Service(failure) => (failure.kind(), failure.to_string()),
            RefusedBy::FileSystem(kind, sentence) => (*kind, sentence.clone()),
        };
        json!({
            "client": client.as_str(),
            "at": self.at.to_string(),
            "operation": self.act.as_str(),
            "name": self.name.as_ref().map(LockName::as_str),
            "kind": kind.as_str(),
            "errno": name_of(self.errno),
            "message": message,
        })
    }
}

/// Returns the content of `.latchfs/why` for a client to which nothing was refused.
pub(crate) fn nothing(client: &ClientId) -> Value {
    json!({ "client": client.as_str(), "message": format!("no request was refused to {client}") })
}

/// Returns the content of `.latchfs/why` about a lock that a lookup found: the refusal that a
/// request for this lock would get now.
pub(crate) fn met(client: &ClientId, view: &LockView) -> Value {
    let Some(refusal) = conflict(client, view) else {
        let name = &view.name;
        let message = if view.has_below {
            only_a_way(name)
        } else {
            format!("lock '{name}' was in the way, and is free now; try again")
        };
        return json!({
            "client": client.as_str(),
            "name": view.name.as_str(),
            "message": message,
        });
    };
    json!({
        "client": client.as_str(),
        "at": Wall::now().to_string(),
        "operation": Act::Lookup.as_str(),
        "name": view.name.as_str(),
        "kind": refusal.kind().as_str(),
        "errno": name_of(Errno::EEXIST),
        "message": refusal.to_string(),
    })
}

/// Returns the error message for an operation on a directory that is no lock, and exists only
/// because of locks below it.
pub(crate) fn only_a_way(name: &LockName) -> String {
    format!(
        "'{name}' is not held: this directory exists only because of locks below it; \
         take the lock of that name with 'latchfs acquire {name}'"
    )
}

/// Adds detail to a refusal if another client than `client` holds the lock: until when that client
/// holds it, or that the lock is in grace.
pub(crate) fn in_the_way(
    client: &ClientId,
    view: &LockView,
    failure: RequestError,
) -> RequestError {
    let RequestError::Refused(refusal) = &failure else { return failure };
    match &*refusal.reason {
        Reason::NotHeld { holder: Some(_), .. } if view.held_by(client).is_none() => {
            conflict(client, view).map_or(failure, RequestError::Refused)
        }
        _ => failure,
    }
}

/// Returns the refusal that an acquire of the lock by `client` would get; `None` if the lock is
/// free and is granted.
fn conflict(client: &ClientId, view: &LockView) -> Option<Refusal> {
    let Some(holder) = view.holder() else {
        let (name, waiting) = (view.name.clone(), view.waiters.len());
        let reason = view.hold_off.map(|hold_off| Reason::HoldOff { name, hold_off, waiting })?;
        return Some(Refusal { at: view.at, reason: Box::new(reason) });
    };
    let lease = &holder.lease;
    let way = match holder.ends.phase(view.at) {
        _ if lease.acquired_at > view.at => Way::StealGrace { until: lease.acquired_at },
        _ if lease.holder == *client => Way::Own,
        Phase::Grace => Way::Grace,
        Phase::Held | Phase::Free => Way::Held,
    };
    let conflict = Conflict {
        name: view.name.clone(),
        holder: lease.holder.clone(),
        token: lease.token,
        mode: view.mode,
        ends: holder.ends,
        way,
        waiting: view.waiters.len(),
        previous: view.previous.clone(),
    };
    Some(Refusal { at: view.at, reason: Box::new(Reason::Conflict(conflict)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    #[test]
    fn each_client_reads_its_own_last_refusal() {
        let whys = LastRefusals::default();
        let say = |who: &str, text: &str| {
            let said = RefusedBy::FileSystem(RefusalKind::Invalid, text.into());
            whys.refused(&client(who), Act::Write, None, Errno::EINVAL, said);
        };
        say("a", "first");
        say("a", "second");
        say("b", "other");
        let Why::Refused(value) = whys.of(&client("a")) else { panic!("a was refused") };
        assert_eq!(value["message"], "second");
        assert_eq!((&value["kind"], &value["errno"]), (&json!("E_INVALID"), &json!("EINVAL")));
        assert!(matches!(whys.of(&client("c")), Why::Nothing));
    }

    #[test]
    fn lookup_replaces_an_older_refusal() {
        let whys = LastRefusals::default();
        let said = RefusedBy::FileSystem(RefusalKind::Invalid, "old".into());
        whys.refused(&client("a"), Act::Write, None, Errno::EINVAL, said);
        whys.met(&client("a"), &LockName::parse("build").expect("valid"));
        assert!(matches!(whys.of(&client("a")), Why::Met(name) if name.as_str() == "build"));
    }

    #[test]
    fn the_number_of_clients_is_bounded() {
        let whys = LastRefusals::default();
        for n in 0..OWNERS_MAX + 10 {
            let said = RefusedBy::FileSystem(RefusalKind::Invalid, "no".into());
            whys.refused(&client(&format!("c{n}")), Act::Write, None, Errno::EINVAL, said);
        }
        assert_eq!(whys.0.lock().owners.len(), OWNERS_MAX);
        assert!(matches!(whys.of(&client("c0")), Why::Nothing));
        assert!(matches!(whys.of(&client("c1033")), Why::Refused(_)));
    }
}
