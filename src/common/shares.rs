//! Shares of limited tables: counts what each identity has taken of a table, so that one identity
//! leaves a part of the table to the others.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The part of each limited table, in percent, that one identity may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharePercent(u8);

impl Default for SharePercent {
    /// Half: an attacker with one identity leaves the other half.
    fn default() -> Self {
        Self(50)
    }
}

impl SharePercent {
    /// Parses a number from 1 to 100.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.trim_end_matches('%').parse() {
            Ok(percent @ 1..=100) => Ok(Self(percent)),
            _ => Err("a share is a percentage from 1 to 100".to_owned()),
        }
    }

    /// Returns the share of a table with `all` places.
    pub const fn of(self, all: usize) -> usize {
        let share = all.saturating_mul(self.0 as usize) / 100;
        if share == 0 { 1 } else { share }
    }
}

/// Limits that an administrator has lowered: the number of places in some tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoweredLimits([Option<usize>; LimitName::ALL.len()]);

/// A table whose limit an administrator may lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitName {
    /// The connections of the HTTP server, and those of the line protocol.
    Connections,
    /// The leases of all locks.
    Locks,
    /// The open sessions.
    Sessions,
    /// The waiters in all queues.
    Waiters,
    /// The waiters in the queue of one lock.
    Queue,
}

impl LimitName {
    /// All limits that an administrator can lower, in the order of their declaration.
    pub const ALL: [Self; 5] =
        [Self::Connections, Self::Locks, Self::Sessions, Self::Waiters, Self::Queue];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Locks => "locks",
            Self::Sessions => "sessions",
            Self::Waiters => "waiters",
            Self::Queue => "queue",
        }
    }

    /// Parses `NAME=N`, with `N` of 1 or more.
    pub fn parse_limit(text: &str) -> Result<(Self, usize), String> {
        let (name, number) = text.split_once('=').unwrap_or((text, ""));
        let Some(known) = Self::ALL.into_iter().find(|known| known.as_str() == name) else {
            let names = Self::ALL.map(Self::as_str).join(", ");
            return Err(format!("there is no limit '{name}'; there are {names}"));
        };
        match number.parse() {
            Ok(number @ 1..) => Ok((known, number)),
            _ => Err(format!("a limit is a number of 1 or more, such as {name}=1000")),
        }
    }
}

impl FromIterator<(LimitName, usize)> for LoweredLimits {
    fn from_iter<I: IntoIterator<Item = (LimitName, usize)>>(limits: I) -> Self {
        let mut lowered = Self::default();
        limits.into_iter().for_each(|(name, max)| lowered.0[name as usize] = Some(max));
        lowered
    }
}

impl LoweredLimits {
    /// Returns the limit of a table that has `max` places without the administrator's limit.
    pub fn of(self, name: LimitName, max: usize) -> usize {
        self.0[name as usize].unwrap_or(max).min(max)
    }
}

/// The identity to which the use of a table is charged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    /// An IPv4 address, or the first address of an IPv6 network of 64 bits: a host chooses any
    /// address in its network.
    Network(IpAddr),
    /// A local user.
    User(u32),
    /// A token, a certificate or a user of a Unix socket, by its kind and name.
    Credential(Arc<str>),
}

impl Identity {
    /// Returns the identity of the callers at an address.
    pub fn of_address(address: IpAddr) -> Self {
        Self::Network(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(network))
            }
        })
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Network(IpAddr::V4(_)) => "address",
            Self::Network(IpAddr::V6(_)) => "network",
            Self::User(_) => "user",
            Self::Credential(_) => "credential",
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(IpAddr::V4(address)) => write!(f, "address {address}"),
            Self::Network(IpAddr::V6(network)) => write!(f, "network {network}/64"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Credential(name) => write!(f, "credential {name}"),
        }
    }
}

/// How many places of a table an identity may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareLimit {
    /// The places of the identity itself.
    pub one: usize,
    /// The number of taken places, of all identities together, at which this identity gets no more.
    /// It is lower for an identity that must leave places to others.
    pub all: usize,
}

/// A limited table, and what each identity has taken of it. Clones share the table.
#[derive(Debug, Clone)]
pub struct SharedTable(Arc<TableInner>);

#[derive(Debug)]
struct TableInner {
    /// The name of the contents of the table, for messages.
    items: &'static str,
    limit: ShareLimit,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    all: usize,
    /// The number of taken places without those that an identity has beyond its share: such places
    /// cost only that identity.
    within_shares: usize,
    by: HashMap<Identity, usize>,
}

/// Places of a table that one identity has taken. Dropping it frees them.
#[derive(Debug)]
pub struct TableShare {
    table: SharedTable,
    who: Identity,
    limit: ShareLimit,
    amount: usize,
}

/// Counts a command as pending in the tables to which it adds, until it is decided and this is
/// dropped.
pub type CommandPermit = Vec<TableShare>;

/// The limits of a table that local users share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimits {
    /// The places of one user.
    pub one: usize,
    /// The number of taken places at which only exempt users get more.
    pub users: usize,
    /// The places of all users, the exempt ones included.
    pub all: usize,
}

impl UserLimits {
    /// Returns the limits of a table with `all` places: one user may take half of them, and an
    /// eighth is kept for the exempt users.
    pub const fn of(all: usize) -> Self {
        Self { one: all / 2, users: all - all / 8, all }
    }
}

/// A table that local users share. Root and the user who runs this process are exempt from the
/// share of one user, and what the other users leave is theirs: they could end the process anyway.
/// Clones share the table.
#[derive(Debug, Clone)]
pub struct UserTable {
    table: SharedTable,
    limits: UserLimits,
    own: u32,
}

impl UserTable {
    /// Returns an empty table of a process that the user `own` runs.
    pub fn new(items: &'static str, limits: UserLimits, own: u32) -> Self {
        Self { table: SharedTable::new(items, limits.all, limits.one), limits, own }
    }

    fn limit(&self, uid: u32) -> ShareLimit {
        let UserLimits { one, users, all } = self.limits;
        let is_exempt = uid == 0 || uid == self.own;
        let one = if is_exempt { usize::MAX } else { one };
        ShareLimit { one, all: if is_exempt { all } else { users } }
    }

    /// Returns a share of a user that has no place yet.
    pub fn empty_share(&self, uid: u32) -> TableShare {
        self.table.empty_share(&Identity::User(uid), self.limit(uid))
    }

    /// Takes `amount` places for a user, or fails if that exceeds a limit.
    pub fn take(&self, uid: u32, amount: usize) -> Result<TableShare, TableFull> {
        self.table.take_within(&Identity::User(uid), amount, self.limit(uid))
    }

    /// Takes `amount` places for a user even beyond the limits.
    pub fn take_always(&self, uid: u32, amount: usize) -> TableShare {
        let mut share = self.empty_share(uid);
        share.grow_always(amount);
        share
    }

    /// Checks that a user may take `more` places.
    pub fn room(&self, uid: u32, more: usize) -> Result<(), TableFull> {
        self.table.room(&Identity::User(uid), more, self.limit(uid))
    }

    /// Returns the number of places that are taken.
    pub fn taken(&self) -> usize {
        self.table.taken()
    }
}

/// The places of a table that one thing takes, for example the bytes of a file, by the users who
/// made it grow.
#[derive(Debug)]
pub struct Charges {
    table: UserTable,
    /// The share of each user, in the order of their first charge.
    parts: Vec<(u32, TableShare)>,
}

impl Charges {
    /// Returns no charges yet.
    pub const fn new(table: UserTable) -> Self {
        Self { table, parts: Vec::new() }
    }

    /// Returns the number of places of all users.
    pub fn amount(&self) -> usize {
        self.parts.iter().map(|(_, share)| share.amount()).sum()
    }

    fn part_of(&mut self, uid: u32) -> &mut TableShare {
        let at = self.parts.iter().position(|(of, _)| *of == uid).unwrap_or_else(|| {
            self.parts.push((uid, self.table.empty_share(uid)));
            self.parts.len() - 1
        });
        &mut self.parts[at].1
    }

    /// Takes `more` places for a user, or fails if that exceeds a limit.
    pub fn grow(&mut self, uid: u32, more: usize) -> Result<(), TableFull> {
        self.part_of(uid).grow(more)
    }

    /// Changes the number of places to `amount`, even beyond the limits. Added places are charged
    /// to the user; freed places were those of the last user who was charged.
    pub fn set(&mut self, uid: u32, amount: usize) {
        let before = self.amount();
        if amount > before {
            self.part_of(uid).grow_always(amount - before);
            return;
        }
        let mut less = before - amount;
        while let Some((_, share)) = self.parts.last_mut().filter(|_| less > 0) {
            let freed = less.min(share.amount());
            share.shrink(freed);
            less -= freed;
            if share.amount() == 0 {
                self.parts.pop();
            }
        }
    }
}

/// Why a table has no place for an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFull {
    items: &'static str,
    /// The identity whose share is used up, or `None` if the table is full.
    who: Option<Identity>,
    max: usize,
}

impl SharedTable {
    /// Returns an empty table of `all_max` places for `items`, of which one identity may take
    /// `one_max`.
    pub fn new(items: &'static str, all_max: usize, one_max: usize) -> Self {
        let limit = ShareLimit { one: one_max, all: all_max };
        Self(Arc::new(TableInner { items, limit, taken: Mutex::default() }))
    }

    /// Takes `amount` places for an identity, unless that exceeds its share or the table.
    pub fn take(&self, who: &Identity, amount: usize) -> Result<TableShare, TableFull> {
        self.take_within(who, amount, self.0.limit)
    }

    /// Returns a share of an identity that has no place yet.
    pub fn empty_share(&self, who: &Identity, limit: ShareLimit) -> TableShare {
        TableShare { table: self.clone(), who: who.clone(), limit, amount: 0 }
    }

    /// Takes `amount` places for an identity with a limit of its own.
    pub fn take_within(
        &self,
        who: &Identity,
        amount: usize,
        limit: ShareLimit,
    ) -> Result<TableShare, TableFull> {
        let mut share = self.empty_share(who, limit);
        share.grow(amount)?;
        Ok(share)
    }

    /// Takes `amount` places even beyond the limits, for a request that can't be refused any more.
    pub fn take_always(&self, who: &Identity, amount: usize) -> TableShare {
        let mut share = self.empty_share(who, self.0.limit);
        share.grow_always(amount);
        share
    }

    /// Checks that an identity with a limit of its own may take `more` places.
    pub fn room(&self, who: &Identity, more: usize, limit: ShareLimit) -> Result<(), TableFull> {
        self.0.room(&self.0.taken.lock(), who, more, limit)
    }

    /// Returns the number of places that are taken.
    pub fn taken(&self) -> usize {
        self.0.taken.lock().all
    }

    /// Returns the number of identities that have taken places.
    pub fn identities(&self) -> usize {
        self.0.taken.lock().by.len()
    }

    /// Returns the number of places that an identity has taken.
    pub fn taken_by(&self, who: &Identity) -> usize {
        self.0.taken.lock().of(who)
    }
}

/// A bounded queue whose entries belong to identities. An entry beyond the share of its identity
/// replaces the oldest one of that identity; one beyond the bound replaces the oldest one of the
/// identity with the most.
#[derive(Debug)]
pub struct SharedQueue<T> {
    table: SharedTable,
    /// The entries, oldest first.
    entries: VecDeque<(TableShare, T)>,
}

impl<T> SharedQueue<T> {
    /// Returns an empty queue of at most `all_max` entries for `items`, of which one identity may
    /// have `one_max`.
    pub fn new(items: &'static str, all_max: usize, one_max: usize) -> Self {
        Self { table: SharedTable::new(items, all_max, one_max), entries: VecDeque::new() }
    }

    /// Adds an entry of an identity, which may replace an older one.
    pub fn push(&mut self, who: &Identity, entry: T) {
        self.entries.push_back((self.table.take_always(who, 1), entry));
        let ShareLimit { one, all } = self.table.0.limit;
        let replaced = if self.table.taken_by(who) > one {
            self.entries.iter().position(|(share, _)| share.who == *who)
        } else if self.entries.len() > all {
            let taken_by =
                |(_, (share, _)): &(usize, &(TableShare, T))| self.table.taken_by(&share.who);
            // `max_by_key` returns the last of several, which is the oldest one here.
            let oldest_last = self.entries.iter().enumerate().rev();
            oldest_last.max_by_key(taken_by).map(|(place, _)| place)
        } else {
            None
        };
        if let Some(place) = replaced {
            self.entries.remove(place);
        }
    }

    /// Removes the oldest entry that `is_it` finds, and returns it.
    pub fn remove(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let place = self.entries.iter().position(|(_, entry)| is_it(entry))?;
        self.entries.remove(place).map(|(_, entry)| entry)
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }
}

impl TableInner {
    fn room(
        &self,
        taken: &TakenPlaces,
        who: &Identity,
        more: usize,
        limit: ShareLimit,
    ) -> Result<(), TableFull> {
        let fits = |has: usize, max: usize| more <= max.saturating_sub(has);
        if !fits(taken.of(who), limit.one) {
            return Err(TableFull { items: self.items, who: Some(who.clone()), max: limit.one });
        }
        if !fits(taken.within_shares, limit.all) {
            return Err(TableFull { items: self.items, who: None, max: limit.all });
        }
        Ok(())
    }
}

impl TableShare {
    /// Takes `more` places, unless that exceeds the share of the identity or the table.
    pub fn grow(&mut self, more: usize) -> Result<(), TableFull> {
        let mut taken = self.table.0.taken.lock();
        self.table.0.room(&taken, &self.who, more, self.limit)?;
        taken.add(&self.who, more, self.limit.one);
        drop(taken);
        self.amount += more;
        Ok(())
    }

    /// Takes `more` places even beyond the limits.
    pub fn grow_always(&mut self, more: usize) {
        self.table.0.taken.lock().add(&self.who, more, self.limit.one);
        self.amount += more;
    }

    /// Changes the number of places to `amount`, even beyond the limits.
    pub fn set(&mut self, amount: usize) {
        if amount >= self.amount {
            self.grow_always(amount - self.amount);
        } else {
            self.shrink(self.amount - amount);
        }
    }

    /// Returns the number of places.
    pub const fn amount(&self) -> usize {
        self.amount
    }

    /// Frees `less` places.
    pub fn shrink(&mut self, less: usize) {
        let less = less.min(self.amount);
        let mut taken = self.table.0.taken.lock();
        taken.remove(&self.who, less, self.limit.one);
        drop(taken);
        self.amount -= less;
    }
}

impl Drop for TableShare {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

impl TakenPlaces {
    fn of(&self, who: &Identity) -> usize {
        self.by.get(who).copied().unwrap_or(0)
    }

    fn add(&mut self, who: &Identity, more: usize, one_max: usize) {
        if more == 0 {
            return;
        }
        self.all += more;
        let has = match self.by.get_mut(who) {
            Some(has) => has,
            None => self.by.entry(who.clone()).or_default(),
        };
        self.within_shares += (*has + more).min(one_max) - (*has).min(one_max);
        *has += more;
    }

    /// Frees places of an identity, whose entry is removed with its last place.
    fn remove(&mut self, who: &Identity, less: usize, one_max: usize) {
        let Some(has) = self.by.get_mut(who) else { return };
        self.all -= less;
        self.within_shares -= (*has).min(one_max) - (*has - less).min(one_max);
        *has -= less;
        if *has == 0 {
            self.by.remove(who);
        }
    }
}

impl TableFull {
    /// Returns the user whose share is used up; `None` if the table is full.
    pub const fn user(&self) -> Option<u32> {
        match self.who {
            Some(Identity::User(uid)) => Some(uid),
            _ => None,
        }
    }

    /// Returns the limit that the table or the identity has reached.
    pub const fn max(&self) -> usize {
        self.max
    }
}

impl fmt::Display for TableFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { items, who, max } = self;
        match who {
            Some(who) => {
                write!(f, "{who} has {max} {items}, which is the share of one {}", who.kind())?;
            }
            None => write!(f, "{max} {items} are in use, which is the limit")?,
        }
        write!(f, "; end some of them, then try again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(address: &str) -> Identity {
        Identity::of_address(address.parse().expect("an address"))
    }

    #[test]
    fn one_identity_leaves_half_to_others() {
        let table = SharedTable::new("things", 10, SharePercent::default().of(10));
        let [eve, ann, bob] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(identity);
        let eves: Vec<_> = (0..5).map(|_| table.take(&eve, 1).expect("her share")).collect();
        let full = table.take(&eve, 1).expect_err("one more than her share");
        assert!(full.to_string().starts_with("address 10.0.0.1 has 5 things, which is the share"));
        let anns = table.take(&ann, 5).expect("the other half");
        let full = table.take(&bob, 1).expect_err("there is no more");
        assert!(full.to_string().starts_with("10 things are in use"), "{full}");
        drop(eves);
        assert!(table.take(&bob, 5).is_ok());
        drop(anns);
        let taken = table.0.taken.lock();
        assert_eq!((taken.all, taken.by.len()), (0, 0), "nothing is left of identities");
    }

    #[test]
    fn a_share_grows_and_shrinks() {
        let table = SharedTable::new("bytes", 100, 50);
        let eve = Identity::User(1_000);
        let mut share = table.take(&eve, 40).expect("her share");
        assert!(share.grow(11).is_err());
        assert!(share.grow(10).is_ok());
        share.grow_always(5);
        assert!(share.grow(1).is_err());
        let anns =
            table.take(&Identity::User(1_001), 50).expect("what is beyond a share counts not");
        drop(anns);
        share.shrink(6);
        assert!(share.grow(1).is_ok());
        assert_eq!(table.taken(), 50);
        drop(share);
        assert_eq!(table.0.taken.lock().within_shares, 0);
    }

    #[test]
    fn one_user_leaves_half_and_all_users_leave_a_part_to_root() {
        let (eve, ann, own) = (1_000, 1_001, 7);
        let table = UserTable::new("bytes", UserLimits::of(80), own);
        let eves = table.take(eve, 40).expect("her share");
        assert_eq!(table.take(eve, 1).expect_err("no more").user(), Some(eve));
        let anns = table.take(ann, 30).expect("what is left for users");
        let full = table.take(ann, 1).expect_err("the rest is kept");
        assert_eq!((full.user(), full.max()), (None, 70));
        for exempt in [0, own] {
            assert!(table.take(exempt, 10).is_ok(), "{exempt}");
            assert!(table.room(exempt, 11).is_err(), "{exempt}");
        }
        drop((eves, anns));
        assert!(table.take(0, 80).is_ok());
        assert_eq!(table.taken(), 0);
    }

    #[test]
    fn each_user_is_charged_for_what_the_user_adds() {
        let (eve, ann) = (1_000, 1_001);
        let table = UserTable::new("bytes", UserLimits::of(80), 0);
        let mut file = Charges::new(table.clone());
        file.grow(ann, 10).expect("her share");
        file.grow(eve, 40).expect("her share");
        assert_eq!(file.grow(eve, 1).expect_err("no more").user(), Some(eve));
        assert!(table.room(ann, 20).is_ok(), "she has not paid for it");
        file.set(eve, 5);
        assert_eq!((file.amount(), table.taken()), (5, 5));
        assert!(table.room(eve, 40).is_ok());
        file.set(eve, 45);
        assert!(table.room(eve, 1).is_err());
        drop(file);
        assert_eq!(table.taken(), 0);
    }

    #[test]
    fn addresses_of_one_ipv6_network_have_one_share() {
        assert_eq!(identity("2001:db8::1"), identity("2001:db8::ffff:0:0:1"));
        assert_ne!(identity("2001:db8::1"), identity("2001:db8:0:1::1"));
        assert_eq!(identity("::ffff:10.0.0.1"), identity("10.0.0.1"));
        assert_eq!(identity("2001:db8::1").to_string(), "network 2001:db8::/64");
    }

    #[test]
    fn limits_can_be_lowered() {
        let parse = |text| LimitName::parse_limit(text);
        let limits: Result<LoweredLimits, _> =
            ["locks=5", "queue=9"].map(parse).into_iter().collect();
        let of = |name| limits.as_ref().map(|limits| limits.of(name, 7)).expect("valid");
        assert_eq!([LimitName::Locks, LimitName::Queue, LimitName::Sessions].map(of), [5, 7, 7]);
        for text in ["locks", "locks=", "locks=0", "locks=-1", "locks=x", "files=3", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_a_percentage() {
        let of = |text| SharePercent::parse(text).map(|percent| percent.of(1_000));
        assert_eq!((of("100"), of("25%"), of("1")), (Ok(1_000), Ok(250), Ok(10)));
        for text in ["0", "101", "-1", "half", ""] {
            assert!(of(text).is_err(), "{text}");
        }
        assert_eq!(SharePercent::default().of(1), 1, "never nothing");
    }
}
