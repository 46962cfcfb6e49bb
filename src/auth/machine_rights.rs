//! The rights of the users of a machine to the locks of the machine's daemon (`serve --machine`).
//!
//! Root may do everything. Any other user has the locks whose names begin with `~USER/`, and those
//! that the file of rights gives, also by a group. Members of the group `latchfs` have all locks.
//! The kernel says who a user is; a process of a container that might be any user has no rights.

use super::grant::{ClientPattern, Credential, Grant};
use super::permissions::PeerUser;
use super::server_tls::{PREFIXES_MAX, TokensError, read_rights};
use crate::engine::{ClientId, LockName};
use nix::unistd::{Group, Uid, User};
use serde::Deserialize;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The group whose members have all locks of the machine.
const ADMINISTRATORS: &str = "latchfs";
/// Maximum number of entries of the file, because each request of a user is compared with all.
const ENTRIES_MAX: usize = 1_000;

/// What the file of rights gives to users and groups.
#[derive(Debug, Default)]
pub(super) struct MachineRights(Vec<MachineRight>);

#[derive(Debug)]
struct MachineRight {
    to: Receiver,
    locks: Vec<String>,
    steal: bool,
}

/// Whom an entry gives rights, by number.
#[derive(Debug, PartialEq, Eq)]
enum Receiver {
    User(u32),
    Group(u32),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RightsFile {
    #[serde(default)]
    rights: Vec<RightsEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RightsEntry {
    user: Option<String>,
    group: Option<String>,
    locks: Vec<String>,
    #[serde(default)]
    steal: bool,
}

impl MachineRights {
    /// Reads the file at `path`, which must be root's, and which nobody else may be able to change.
    /// Without a file only the administrators have rights to other names than their own.
    pub(super) fn read(path: &Path) -> Result<Self, TokensError> {
        let text = match read_rights(path) {
            Err(TokensError::Read(error)) if error.kind() == io::ErrorKind::NotFound => {
                String::new()
            }
            read => match read? {
                (text, 0) => text,
                (_, uid) => {
                    let why =
                        format!("it belongs to user {uid}, who could change it; 'chown root' it");
                    return Err(TokensError::Wrong(why));
                }
            },
        };
        let mut rights = Self::parse(&text).map_err(TokensError::Wrong)?;
        if let Ok(Some(group)) = Group::from_name(ADMINISTRATORS) {
            let to = Receiver::Group(group.gid.as_raw());
            rights.0.push(MachineRight { to, locks: vec![String::new()], steal: true });
        }
        Ok(rights)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: RightsFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if file.rights.len() > ENTRIES_MAX {
            return Err(format!("there are more than {ENTRIES_MAX} entries in it"));
        }
        file.rights.into_iter().map(RightsEntry::right).collect::<Result<_, _>>().map(Self)
    }

    /// Returns `own`, the grant of the user for the user's own names, with what the file adds.
    pub(super) fn widened(&self, own: &Arc<Grant>, user: &PeerUser) -> Arc<Grant> {
        let is_for = |right: &&MachineRight| match right.to {
            Receiver::User(uid) => uid == user.uid,
            Receiver::Group(gid) => user.groups.iter().flatten().any(|group| *group == gid),
        };
        let mut given = self.0.iter().filter(is_for).peekable();
        if own.own_names.is_none() || given.peek().is_none() {
            return Arc::clone(own);
        }
        let mut grant = Grant::clone(own);
        for right in given {
            grant.prefixes.extend(right.locks.iter().cloned());
            grant.steals.extend(right.locks.iter().filter(|_| right.steal).cloned());
        }
        Arc::new(grant)
    }
}

impl RightsEntry {
    fn right(self) -> Result<MachineRight, String> {
        let Self { user, group, locks, steal } = self;
        if locks.len() > PREFIXES_MAX {
            return Err(format!("locks names at most {PREFIXES_MAX} beginnings of names"));
        }
        // The number of a user or group of a directory service can be written instead of a name.
        let to = match (&user, &group) {
            (Some(user), None) => user.parse().ok().map(Receiver::User).or_else(|| {
                let known = User::from_name(user).ok()??;
                Some(Receiver::User(known.uid.as_raw()))
            }),
            (None, Some(group)) => group.parse().ok().map(Receiver::Group).or_else(|| {
                let known = Group::from_name(group).ok()??;
                Some(Receiver::Group(known.gid.as_raw()))
            }),
            _ => return Err("an entry names either a user or a group".to_owned()),
        };
        let name = user.or(group).unwrap_or_default();
        let to = to.ok_or_else(|| {
            format!("this machine knows no '{name}'; write the number if a directory service does")
        })?;
        Ok(MachineRight { to, locks, steal })
    }
}

impl Grant {
    /// Returns the grant of a user at the socket of the machine's daemon on the host `host`, before
    /// the file of rights is asked; `None` if the user is not known for certain. `own_uid` is the
    /// user of the daemon.
    pub fn on_machine(user: &PeerUser, own_uid: u32, host: &ClientId) -> Option<Self> {
        let uid = user.uid;
        if is_of_container(user.pid?) {
            return None;
        }
        if uid == 0 || uid == own_uid {
            return Self::at_socket(uid, own_uid, true);
        }
        let known = User::from_uid(Uid::from_raw(uid)).ok()?.map(|user| user.name);
        let name = usable_name(known, host).unwrap_or_else(|| uid.to_string());
        let client = format!("{host}:{name}");
        let users = ClientPattern::Beginning(format!("{client}:"));
        let own = format!("~{name}/");
        Some(Self {
            credential: Credential::User,
            name: format!("uid {uid}"),
            clients: vec![ClientPattern::Exactly(client), users],
            prefixes: vec![own.clone()],
            steals: vec![own.clone()],
            own_names: Some(own),
            ..Self::nothing()
        })
    }
}

/// Returns the name of a user if it can be a part of a client's id and of a lock's name, and is not
/// the number of another user.
fn usable_name(name: Option<String>, host: &ClientId) -> Option<String> {
    name.filter(|name| {
        let is_part = !name.is_empty() && !name.contains([':', '/']);
        is_part
            && name.parse::<u32>().is_err()
            && LockName::parse(&format!("~{name}/x")).is_ok()
            && ClientId::parse(&format!("{host}:{name}")).is_ok()
    })
}

/// Whether a process may be one of a container whose root can take the id of each user of this
/// machine: it has another process table, and the same users. Containers with users of their own
/// and the sandboxes of users have ids that the kernel translates.
#[cfg(target_os = "linux")]
fn is_of_container(pid: u32) -> bool {
    let about = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let (Ok(status), Ok(users)) = (about("status"), about("uid_map")) else { return true };
    let Ok(own_users) = std::fs::read_to_string("/proc/self/uid_map") else { return true };
    is_nested(&status) && (users == own_users || has_root(&users))
}

/// Whether a table of user ids contains the root of this machine.
#[cfg(target_os = "linux")]
fn has_root(users: &str) -> bool {
    users.lines().any(|range| range.split_whitespace().nth(1) == Some("0"))
}

/// Whether a process has a number in more than one process table.
#[cfg(target_os = "linux")]
fn is_nested(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_none_or(|numbers| numbers.split_whitespace().count() != 1)
}

#[cfg(not(target_os = "linux"))]
fn is_of_container(_pid: u32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> ClientId {
        ClientId::parse("box").expect("valid")
    }

    fn alice(groups: &[u32]) -> PeerUser {
        PeerUser { uid: 47_110, groups: Some(groups.to_vec()), pid: Some(std::process::id()) }
    }

    #[test]
    fn a_user_has_own_names_and_what_the_file_gives() {
        let user = alice(&[20]);
        let own = Arc::new(Grant::on_machine(&user, 0, &host()).expect("it is known"));
        assert_eq!((&own.prefixes, &own.steals), (&own.steals, &vec!["~47110/".to_owned()]));
        assert_eq!(own.only_client(), Some("box:47110"));
        let text = r#"
            rights = [
                { group = "20", locks = ["ci/"] },
                { user = "47110", locks = ["deploy/"], steal = true },
                { user = "7", locks = [""] },
            ]"#;
        let rights = MachineRights::parse(text).expect("well formed");
        let grant = rights.widened(&own, &user);
        assert_eq!(grant.prefixes, ["~47110/", "ci/", "deploy/"]);
        assert_eq!(grant.steals, ["~47110/", "deploy/"]);
        assert_eq!(rights.widened(&own, &PeerUser { uid: 8, ..alice(&[]) }), own);
        let root = Arc::new(Grant::on_machine(&PeerUser { uid: 0, ..user }, 0, &host()));
        assert!(root.as_ref().as_ref().is_some_and(Grant::may_everything));
        let unseen = PeerUser { pid: None, ..alice(&[]) };
        assert_eq!(Grant::on_machine(&unseen, 0, &host()), None);
    }

    #[test]
    fn the_number_of_rights_is_limited() {
        let entry = "[[rights]]\nuser = \"7\"\nlocks = [\"a/\"]\n";
        let parsed = |count| MachineRights::parse(&entry.repeat(count));
        assert_eq!(parsed(ENTRIES_MAX).map(|rights| rights.0.len()).ok(), Some(ENTRIES_MAX));
        let why = parsed(ENTRIES_MAX + 1).expect_err("one too many");
        assert!(why.contains("more than 1000"), "{why}");
    }

    #[test]
    fn an_invalid_entry_is_explained() {
        for (text, says) in [
            ("locks = []", "either a user or a group"),
            ("user = \"1\"\ngroup = \"1\"\nlocks = []", "either a user or a group"),
            ("user = \"no such user\"\nlocks = []", "knows no 'no such user'"),
            ("user = \"1\"", "locks"),
            ("user = \"1\"\nlocks = []\nstael = true", "stael"),
        ] {
            let why = MachineRights::parse(&format!("[[rights]]\n{text}\n")).expect_err("invalid");
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn a_name_that_others_could_have_is_not_used() {
        let usable = |name: &str| usable_name(Some(name.to_owned()), &host()).is_some();
        assert!(usable("alice") && usable("CORP\\alice"));
        for name in ["", "1001", "a:b", "a/b", "a\nb"] {
            assert!(!usable(name), "{name:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_container_has_more_than_one_process_table() {
        assert!(!is_nested("Name:\tsh\nNSpid:\t7\n") && is_nested("NSpid:\t7\t1\n"));
        assert!(is_nested("Name:\tsh\n"), "a kernel that does not say it");
        assert!(has_root("0 0 4294967295\n") && has_root("0 100000 9\n9 0 1\n"));
        assert!(!has_root("0 1000 1\n1 100000 65536\n"));
        assert!(is_of_container(u32::MAX), "it has ended");
    }
}
