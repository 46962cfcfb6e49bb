//! Encodes single values as bytes: numbers, texts, lists, structs and enums.
//!
//! Each value has exactly one encoding, so equal values have equal bytes. Decoding never panics and
//! never trusts a length, since the bytes come from disks and networks.
//!
//! Interns client and process ids while decoding, so that equal strings share one allocation.

use super::format_version::{UnknownVersion, check_version};
use crate::values::command::{Command, Op};
use crate::values::details::Patch;
use crate::values::lease::Lease;
use crate::values::name::ClientId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes have a version that this latchfs does not know.
    Version(UnknownVersion),
    /// The bytes are not a valid encoding.
    Malformed,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(unknown) => write!(f, "it has {unknown}"),
            Self::Malformed => Malformed.fmt(f),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<UnknownVersion> for DecodeError {
    fn from(unknown: UnknownVersion) -> Self {
        Self::Version(unknown)
    }
}

impl From<Malformed> for DecodeError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// The error for bytes that are not a valid encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the bytes are damaged")
    }
}

impl std::error::Error for Malformed {}

/// Encodes values of one version, one after the other.
#[derive(Debug)]
pub struct Encoder {
    /// The version of the encoding: a field of a later one is left out.
    #[cfg_attr(not(feature = "planted-version"), allow(dead_code))]
    pub version: u8,
    bytes: Vec<u8>,
}

impl Encoder {
    /// Returns an encoder for values of this version.
    pub const fn new(version: u8) -> Self {
        Self { version, bytes: Vec::new() }
    }

    /// Returns an encoder for a message: the version is its first byte.
    pub fn message(version: u8) -> Self {
        Self { version, bytes: vec![version] }
    }

    /// Returns the encoded bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl std::ops::Deref for Encoder {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl std::ops::DerefMut for Encoder {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

/// Decodes values from bytes, front to back.
pub struct Decoder<'a> {
    bytes: &'a [u8],
    /// The version of the encoding.
    #[cfg_attr(not(feature = "planted-version"), allow(dead_code))]
    version: u8,
    /// How many bytes of memory the decoded values may still take.
    room: usize,
}

/// Items for which a list reserves memory before they are decoded. Most lists are shorter.
const RESERVED_MAX: usize = 256;

/// Bytes of overhead to assume for each allocation.
const ALLOCATION: usize = 32;

impl<'a> Decoder<'a> {
    /// Returns a decoder for bytes of this version from a trusted source.
    pub const fn new(version: u8, bytes: &'a [u8]) -> Self {
        Self { bytes, version, room: usize::MAX }
    }

    /// Returns a decoder for bytes from an untrusted source: the decoded values take at most `room`
    /// bytes of memory.
    pub const fn within(room: usize, version: u8, bytes: &'a [u8]) -> Self {
        Self { bytes, version, room }
    }

    /// Decodes a value that `version` has added; returns its default if the bytes have an older
    /// version.
    #[cfg_attr(not(feature = "planted-version"), allow(dead_code))]
    pub fn take_since<T: Codec + Default>(&mut self, version: u8) -> Result<T, Malformed> {
        if self.version < version { Ok(T::default()) } else { T::take(self) }
    }

    /// Decodes the length of a list of `T`, and subtracts the size of the list from the memory that
    /// decoded values may still take. Each item takes at least one byte, so a length beyond the
    /// remaining bytes is an error.
    pub fn take_length<T>(&mut self) -> Result<usize, Malformed> {
        let length = usize::take(self)?;
        require(length <= self.bytes.len())?;
        self.claim(length.checked_mul(size_of::<T>()).ok_or(Malformed)?)?;
        Ok(length)
    }

    /// Subtracts `bytes`, and the overhead of an allocation, from the memory that decoded values
    /// may still take. Fails if too little is left.
    fn claim(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.room = self.room.checked_sub(bytes.saturating_add(ALLOCATION)).ok_or(Malformed)?;
        Ok(())
    }

    /// Consumes as many bytes as the array has.
    pub fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or(Malformed)?;
        self.bytes = rest;
        Ok(*array)
    }

    /// Returns the next byte without consuming it.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// Whether all bytes have been decoded.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the remaining bytes.
    pub const fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns an error unless all bytes have been decoded.
    pub fn end(self) -> Result<(), Malformed> {
        require(self.is_empty())
    }
}

/// A value that has exactly one encoding.
pub trait Codec: Sized {
    /// Appends the encoding of the value.
    fn put(&self, out: &mut Encoder);
    /// Decodes a value from the next bytes.
    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed>;
}

/// Encodes a message: a byte for the version, then the value.
pub fn encode_message(version: u8, value: &impl Codec) -> Vec<u8> {
    let mut out = Encoder::message(version);
    value.put(&mut out);
    out.into_bytes()
}

/// Decodes a message that [`encode_message`] encoded. The value takes at most `room` bytes of
/// memory.
pub fn decode_message<T: Codec>(room: usize, bytes: &[u8]) -> Result<T, DecodeError> {
    let (version, body) = bytes.split_first().ok_or(Malformed)?;
    check_version(*version)?;
    let mut from = Decoder::within(room, *version, body);
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}

/// Returns an error unless the decoded value is sound.
pub fn require(sound: bool) -> Result<(), Malformed> {
    if sound { Ok(()) } else { Err(Malformed) }
}

/// LEB128: seven bits a byte, lowest first; the top bit marks that another byte follows.
impl Codec for u64 {
    fn put(&self, out: &mut Encoder) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = u8::take(from)?;
            let bits = Self::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // A last byte of zero, other than for the number 0 itself, is padding. It is an
                // error, so that each value has only one encoding.
                return if byte == 0 && shift > 0 { Err(Malformed) } else { Ok(value) };
            }
        }
        Err(Malformed)
    }
}

impl Codec for u8 {
    fn put(&self, out: &mut Encoder) {
        out.push(*self);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (byte, rest) = from.bytes.split_first().ok_or(Malformed)?;
        from.bytes = rest;
        Ok(*byte)
    }
}

/// Implements [`Codec`] for types that are encoded as a number.
macro_rules! wire_number {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        impl Codec for $type {
            fn put(&self, out: &mut Encoder) {
                let to: fn(&$type) -> u64 = $to;
                to(self).put(out);
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
                let make: fn(u64) -> Option<$type> = $from;
                make(u64::take(from)?).ok_or(Malformed)
            }
        }
    )*};
}

impl Codec for Arc<[u8]> {
    fn put(&self, out: &mut Encoder) {
        self.len().put(out);
        out.extend_from_slice(self);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(take_bytes(from)?.into())
    }
}

pub(super) fn take_bytes<'a>(from: &mut Decoder<'a>) -> Result<&'a [u8], Malformed> {
    let length = from.take_length::<u8>()?;
    let (bytes, rest) = from.bytes.split_at_checked(length).ok_or(Malformed)?;
    from.bytes = rest;
    Ok(bytes)
}

pub(super) fn put_text(text: &str, out: &mut Encoder) {
    text.len().put(out);
    out.extend_from_slice(text.as_bytes());
}

/// Implements [`Codec`] for types that are encoded as a text and checked when decoded.
macro_rules! wire_text {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        impl Codec for $type {
            fn put(&self, out: &mut Encoder) {
                let to: fn(&$type) -> &str = $to;
                put_text(to(self), out);
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
                let text = std::str::from_utf8(take_bytes(from)?).map_err(|_| Malformed)?;
                let make: fn(&str) -> Option<$type> = $from;
                make(text).ok_or(Malformed)
            }
        }
    )*};
}

impl<T: Codec> Codec for Option<T> {
    fn put(&self, out: &mut Encoder) {
        match self {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                value.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(None),
            1 => T::take(from).map(Some),
            _ => Err(Malformed),
        }
    }
}

impl Codec for String {
    fn put(&self, out: &mut Encoder) {
        Arc::<str>::from(self.as_str()).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Arc::<str>::take(from).map(|text| text.to_string())
    }
}

/// A result is encoded as a tag for success or failure, followed by the value or the error.
impl<T: Codec, E: Codec> Codec for Result<T, E> {
    fn put(&self, out: &mut Encoder) {
        match self {
            Ok(value) => {
                out.push(0);
                value.put(out);
            }
            Err(error) => {
                out.push(1);
                error.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => T::take(from).map(Ok),
            1 => E::take(from).map(Err),
            _ => Err(Malformed),
        }
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    fn put(&self, out: &mut Encoder) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn put(&self, out: &mut Encoder) {
        self.len().put(out);
        for value in self {
            value.put(out);
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let length = from.take_length::<T>()?;
        let mut list = Self::with_capacity(length.min(RESERVED_MAX));
        for _ in 0..length {
            list.push(T::take(from)?);
        }
        Ok(list)
    }
}

impl<K: Codec + Ord, V: Codec> Codec for BTreeMap<K, V> {
    fn put(&self, out: &mut Encoder) {
        self.len().put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let mut map = Self::new();
        for _ in 0..from.take_length::<(K, V)>()? {
            let (key, value) = <(K, V)>::take(from)?;
            require(map.last_key_value().is_none_or(|(last, _)| *last < key))?;
            map.insert(key, value);
        }
        Ok(map)
    }
}

impl<T: Codec> Codec for Box<T> {
    fn put(&self, out: &mut Encoder) {
        (**self).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        T::take(from).map(Self::new)
    }
}

impl<T: Codec> Codec for Arc<T> {
    fn put(&self, out: &mut Encoder) {
        (**self).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        T::take(from).map(Self::new)
    }
}

/// Implements [`Codec`] for a struct: its fields in the order given. Those after the semicolon are
/// derived from other values, and begin with their default. A field `since` a version is left out
/// of an older one.
#[macro_export]
macro_rules! wire_struct {
    ($(
        $type:ident { $($field:ident),* $(; $($derived:ident),*)? }
        $([since $version:literal: $new:ident])?
    )*) => {$(
        impl Codec for $type {
            fn put(&self, out: &mut Encoder) {
                $(self.$field.put(out);)*
                $(if out.version >= $version {
                    self.$new.put(out);
                })?
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
                $(let $field = Codec::take(from)?;)*
                $($(let $derived = Default::default();)*)?
                $(let $new = from.take_since($version)?;)?
                Ok(Self { $($field,)* $($($derived,)*)? $($new)? })
            }
        }
    )*};
}

/// Implements [`Codec`] for an enum, which is encoded as the number of the variant, then its
/// fields. The number of a variant that was removed is never given to another variant.
#[macro_export]
macro_rules! wire_enum {
    ($($type:ident {
        $(
            $(#[$when:meta])*
            $number:literal $variant:ident $(($($part:ident),*))? $({ $($field:ident),* })?
        ),* $(,)?
    })*) => {$(
        impl Codec for $type {
            fn put(&self, out: &mut Encoder) {
                match self {
                    $($(#[$when])* Self::$variant $(($($part),*))? $({ $($field),* })? => {
                        out.push($number);
                        $($($part.put(out);)*)?
                        $($($field.put(out);)*)?
                    })*
                }
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
                match u8::take(from)? {
                    $($(#[$when])* $number => {
                        $($(let $part = Codec::take(from)?;)*)?
                        $($(let $field = Codec::take(from)?;)*)?
                        Ok(Self::$variant $(($($part),*))? $({ $($field),* })?)
                    })*
                    _ => Err(Malformed),
                }
            }
        }
    )*};
}

pub use {wire_enum, wire_struct};
pub(crate) use {wire_number, wire_text};

/// The client and holder ids decoded so far. Each is stored once, so that a million locks of one
/// client share one copy of the client's name.
#[derive(Debug, Default)]
pub struct Interner {
    clients: BTreeSet<ClientId>,
    holder_ids: BTreeSet<Arc<str>>,
}

impl Interner {
    /// Returns the interned copy of `client`.
    fn client(&mut self, client: &ClientId) -> ClientId {
        if let Some(known) = self.clients.get(client) {
            return known.clone();
        }
        self.clients.insert(client.clone());
        client.clone()
    }

    fn holder_id(&mut self, id: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.holder_ids.get(id) {
            return Arc::clone(known);
        }
        self.holder_ids.insert(Arc::clone(id));
        Arc::clone(id)
    }

    /// Replaces the client and holder ids in a decoded acquire by their interned copies. Leaves
    /// other commands as they are.
    pub fn share(&mut self, command: &mut Command) {
        if let Op::Acquire(ask) = &mut command.op {
            ask.client = self.client(&ask.client);
            let id = ask.patch.holder_id.take();
            ask.patch.holder_id = id.map(|id| self.holder_id(&id));
        }
    }

    pub(super) fn share_lease(&mut self, lease: &mut Lease) {
        lease.holder = self.client(&lease.holder);
        if let Some(id) = lease.details.holder_id().map(|id| self.holder_id(id)) {
            let patch = Patch { holder_id: Some(id), ..Patch::default() };
            patch.apply(&mut lease.details);
        }
    }
}
