//! Shares of limited tables: counts what each identity has taken of a table, so that one identity
//! leaves a part of the table to the others.

use parking_lot::Mutex;
use std::collections::HashMap;
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
    /// All names, in the order of their declaration.
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
pub(crate) enum Identity {
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
    pub(crate) fn of_address(address: IpAddr) -> Self {
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

/// A limited table, and what each identity has taken of it. Clones share the table.
#[derive(Debug, Clone)]
pub(crate) struct SharedTable(Arc<TableInner>);

#[derive(Debug)]
struct TableInner {
    /// The name of the contents of the table, for messages.
    items: &'static str,
    all_max: usize,
    one_max: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    all: usize,
    by: HashMap<Identity, usize>,
}

/// Places of a table that one identity has taken. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct TableShare {
    table: SharedTable,
    who: Identity,
    /// The share of the identity.
    one_max: usize,
    amount: usize,
}

/// Why a table has no place for an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableFull {
    items: &'static str,
    /// The identity whose share is used up, or `None` if the table is full.
    who: Option<Identity>,
    max: usize,
}

impl SharedTable {
    /// Returns an empty table of `all_max` places for `items`, of which one identity may take
    /// `one_max`.
    pub(crate) fn new(items: &'static str, all_max: usize, one_max: usize) -> Self {
        Self(Arc::new(TableInner { items, all_max, one_max, taken: Mutex::default() }))
    }

    /// Takes `amount` places for an identity, unless that exceeds its share or the table.
    pub(crate) fn take(&self, who: &Identity, amount: usize) -> Result<TableShare, TableFull> {
        self.take_within(who, amount, self.0.one_max)
    }

    fn empty_share(&self, who: &Identity, one_max: usize) -> TableShare {
        TableShare { table: self.clone(), who: who.clone(), one_max, amount: 0 }
    }

    /// Takes `amount` places for an identity whose share is `one_max`.
    pub(crate) fn take_within(
        &self,
        who: &Identity,
        amount: usize,
        one_max: usize,
    ) -> Result<TableShare, TableFull> {
        let mut share = self.empty_share(who, one_max);
        share.grow(amount)?;
        Ok(share)
    }

    /// Takes `amount` places even beyond the limits, for a request that can't be refused any more.
    pub(crate) fn take_always(&self, who: &Identity, amount: usize) -> TableShare {
        let mut share = self.empty_share(who, self.0.one_max);
        share.grow_always(amount);
        share
    }

    /// Checks that an identity whose share is `one_max` may take `more` places.
    #[cfg(target_os = "linux")]
    pub(crate) fn room(
        &self,
        who: &Identity,
        more: usize,
        one_max: usize,
    ) -> Result<(), TableFull> {
        self.0.room(&self.0.taken.lock(), who, more, one_max)
    }

    /// Returns the number of places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.0.taken.lock().all
    }
}

impl TableInner {
    fn room(
        &self,
        taken: &TakenPlaces,
        who: &Identity,
        more: usize,
        one_max: usize,
    ) -> Result<(), TableFull> {
        let fits = |has: usize, max: usize| more <= max.saturating_sub(has);
        if !fits(taken.by.get(who).copied().unwrap_or(0), one_max) {
            return Err(TableFull { items: self.items, who: Some(who.clone()), max: one_max });
        }
        if !fits(taken.all, self.all_max) {
            return Err(TableFull { items: self.items, who: None, max: self.all_max });
        }
        Ok(())
    }
}

impl TableShare {
    /// Takes `more` places, unless that exceeds the share of the identity or the table.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), TableFull> {
        let mut taken = self.table.0.taken.lock();
        self.table.0.room(&taken, &self.who, more, self.one_max)?;
        taken.add(&self.who, more);
        drop(taken);
        self.amount += more;
        Ok(())
    }

    /// Takes `more` places even beyond the limits.
    pub(crate) fn grow_always(&mut self, more: usize) {
        self.table.0.taken.lock().add(&self.who, more);
        self.amount += more;
    }

    /// Frees `less` places.
    pub(crate) fn shrink(&mut self, less: usize) {
        let less = less.min(self.amount);
        let mut taken = self.table.0.taken.lock();
        taken.all -= less;
        // The entry of an identity is removed with its last place.
        if let Some(has) = taken.by.get_mut(&self.who) {
            *has -= less;
            if *has == 0 {
                taken.by.remove(&self.who);
            }
        }
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
    fn add(&mut self, who: &Identity, more: usize) {
        if more == 0 {
            return;
        }
        self.all += more;
        if let Some(has) = self.by.get_mut(who) {
            *has += more;
        } else {
            self.by.insert(who.clone(), more);
        }
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
        share.shrink(6);
        assert!(share.grow(1).is_ok());
        assert_eq!(table.taken(), 50);
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
