//! The code of an invitation, and the exchange by which two machines prove to each other that they
//! know it: SPAKE2, a password-authenticated key exchange, and a key confirmation.
//!
//! Whoever is between the two machines learns nothing from which the code could be tried later:
//! each try needs an exchange of its own with a machine that knows the code. The confirmation
//! covers everything on which the two must agree, so that nothing of it can be replaced on the way.

use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use rand_core::CryptoRngCore;
use sha2::{Digest, Sha256};
use spake2::{Ed25519Group, Identity, Password, Spake2};
use std::fmt;

/// Maximum number of invitations at a time: slots have the numbers from 1 to this.
pub(crate) const SLOTS_MAX: usize = 16;

/// Length of the value that both ends of a TLS connection derive from it.
pub(crate) const EXPORTER_BYTES: usize = 32;

/// The label of that value.
pub(crate) const EXPORTER_LABEL: &[u8] = b"EXPORTER-latchfs-join";

/// The letters of a secret: digits and letters that are not mistaken for others. Each has 5 bits.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The number of letters of a secret: 40 bits.
const SECRET_LETTERS: usize = 8;

/// The secret part of a code.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JoinSecret([u8; SECRET_LETTERS]);

/// A code: the public number of its slot, and the secret. It is written as `3-k7mq-2xhd`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JoinCode {
    pub(crate) slot: u8,
    pub(crate) secret: JoinSecret,
}

/// One of the two machines of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinRole {
    /// The machine that joins.
    Device,
    /// The server that it joins.
    Server,
}

/// The state of an exchange between the two messages.
pub(crate) struct Exchange(Spake2<Ed25519Group>);

/// The key that both machines have if they know the same code.
pub(crate) struct SharedKey(Vec<u8>);

/// What both machines must agree on, apart from the code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transcript<'a> {
    /// The kind of the invitation.
    pub(crate) kind: &'a str,
    pub(crate) slot: u8,
    /// The name of the device.
    pub(crate) name: &'a str,
    /// The certificate of the CA (PEM).
    pub(crate) ca: &'a str,
    /// The certificate request of the device (PEM).
    pub(crate) request: &'a str,
    /// The message of the device, and that of the server.
    pub(crate) messages: [&'a [u8]; 2],
    /// The value that the TLS connection exports. A relay has two connections, whose values differ.
    pub(crate) exporter: &'a [u8],
}

impl JoinSecret {
    /// Returns a new secret.
    pub(crate) fn random(random: &mut impl CryptoRngCore) -> Self {
        let mut bytes = [0; SECRET_LETTERS];
        random.fill_bytes(&mut bytes);
        // The 256 values of a byte divide evenly among the letters.
        Self(bytes.map(|byte| LETTERS[usize::from(byte) % LETTERS.len()]))
    }
}

impl JoinCode {
    /// Parses a code as a person types it: in upper or lower case, with or without the second
    /// hyphen, and with letters that look like digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (slot, secret) = text.trim().split_once('-')?;
        let slot = slot.trim().parse().ok().filter(|slot| is_slot(*slot))?;
        let letters = secret.bytes().filter(|byte| !matches!(byte, b'-' | b' '));
        let letters = letters.map(|byte| match byte.to_ascii_lowercase() {
            b'o' => b'0',
            b'i' | b'l' => b'1',
            other => other,
        });
        let letters: Vec<u8> = letters.collect();
        let is_known = letters.iter().all(|letter| LETTERS.contains(letter));
        let secret = JoinSecret(letters.try_into().ok().filter(|_| is_known)?);
        Some(Self { slot, secret })
    }
}

/// Whether there is a slot with this number.
pub(crate) fn is_slot(number: u8) -> bool {
    (1..=SLOTS_MAX).contains(&usize::from(number))
}

impl fmt::Display for JoinCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = String::from_utf8_lossy(&self.secret.0);
        let (first, second) = letters.split_at(SECRET_LETTERS / 2);
        write!(f, "{}-{first}-{second}", self.slot)
    }
}

impl Exchange {
    /// Begins an exchange, and returns the message for the other machine.
    pub(crate) fn begin(
        role: JoinRole,
        secret: &JoinSecret,
        random: &mut impl CryptoRngCore,
    ) -> (Self, Vec<u8>) {
        let password = Password::new(secret.0);
        let device = Identity::new(b"latchfs device");
        let server = Identity::new(b"latchfs server");
        let (state, message) = match role {
            JoinRole::Device => Spake2::start_a_with_rng(&password, &device, &server, random),
            JoinRole::Server => Spake2::start_b_with_rng(&password, &device, &server, random),
        };
        (Self(state), message)
    }

    /// Ends the exchange with the message of the other machine. `None`: the message is malformed.
    pub(crate) fn end(self, message: &[u8]) -> Option<SharedKey> {
        self.0.finish(message).ok().map(SharedKey)
    }
}

impl SharedKey {
    /// Returns the proof of a machine that it has this key and agrees on `transcript`.
    pub(crate) fn confirmation(&self, role: JoinRole, transcript: &Transcript<'_>) -> Vec<u8> {
        self.authenticator(role, transcript).finalize().into_bytes().to_vec()
    }

    /// Checks the proof of the machine `role`, in constant time.
    pub(crate) fn accepts(
        &self,
        role: JoinRole,
        transcript: &Transcript<'_>,
        confirmation: &[u8],
    ) -> bool {
        self.authenticator(role, transcript).verify_slice(confirmation).is_ok()
    }

    fn authenticator(&self, role: JoinRole, transcript: &Transcript<'_>) -> Hmac<Sha256> {
        let label: &[u8] = match role {
            JoinRole::Device => b"latchfs join 1: the device confirms",
            JoinRole::Server => b"latchfs join 1: the server confirms",
        };
        let mut key = [0; 32];
        let expanded = Hkdf::<Sha256>::new(None, &self.0).expand(label, &mut key);
        expanded.expect("a digest may be so long");
        let mut authenticator =
            Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length will do");
        for part in transcript.parts(role) {
            // The length before each part keeps two transcripts from reading alike.
            authenticator.update(&(part.len() as u64).to_be_bytes());
            authenticator.update(&part);
        }
        authenticator
    }
}

impl Transcript<'_> {
    fn parts(&self, role: JoinRole) -> [Vec<u8>; 9] {
        let digest = |text: &str| Sha256::digest(text).to_vec();
        let role: &[u8] = match role {
            JoinRole::Device => b"device",
            JoinRole::Server => b"server",
        };
        [
            role.to_vec(),
            self.kind.into(),
            vec![self.slot],
            self.name.into(),
            digest(self.ca),
            digest(self.request),
            self.messages[0].to_vec(),
            self.messages[1].to_vec(),
            self.exporter.to_vec(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::{CryptoRng, Error, OsRng, RngCore};

    /// Yields the little-endian bytes of one number, and zeros after them.
    struct Fixed(Vec<u8>);

    impl RngCore for Fixed {
        fn next_u32(&mut self) -> u32 {
            unreachable!("the exchange takes bytes")
        }

        fn next_u64(&mut self) -> u64 {
            unreachable!("the exchange takes bytes")
        }

        fn fill_bytes(&mut self, to: &mut [u8]) {
            to.fill(0);
            to[..self.0.len()].copy_from_slice(&self.0);
        }

        fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Error> {
            self.fill_bytes(to);
            Ok(())
        }
    }

    impl CryptoRng for Fixed {}

    /// Returns the little-endian bytes of a decimal number.
    fn number(decimal: &str) -> Fixed {
        let mut bytes = vec![0_u8; 32];
        for digit in decimal.bytes() {
            let mut carry = u32::from(digit - b'0');
            for byte in &mut bytes {
                carry += u32::from(*byte) * 10;
                *byte = (carry & 0xff) as u8;
                carry >>= 8;
            }
        }
        Fixed(bytes)
    }

    fn digit(number: u8) -> char {
        char::from_digit(number.into(), 16).expect("below 16")
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
    }

    /// The vectors of python-spake2, `test_compat.SPAKE2.test_asymmetric`, which the crate has too.
    #[test]
    fn exchange_computes_the_published_vectors() {
        let (password, ids) =
            (Password::new(b"password"), [b"idA", b"idB"].map(|id| Identity::new(id)));
        let a =
            number("2611694063369306139794446498317402240796898290761098242657700742213257926693");
        let b =
            number("7002393159576182977806091886122272758628412261510164356026361256515836884383");
        let (one, to_two) =
            Spake2::<Ed25519Group>::start_a_with_rng(&password, &ids[0], &ids[1], a);
        let (two, to_one) =
            Spake2::<Ed25519Group>::start_b_with_rng(&password, &ids[0], &ids[1], b);
        let first = "416fc960df73c9cf8ed7198b0c9534e2e96a5984bfc5edc023fd24dacf371f2af9";
        let second = "42354e97b88406922b1df4bea1d7870f17aed3dba7c720b313edae315b00959309";
        assert_eq!((hex(&to_two), hex(&to_one)), (first.to_owned(), second.to_owned()));
        let key = "712295de7219c675ddd31942184aa26e0a957cf216bc230d165b215047b520c1";
        assert_eq!(hex(&one.finish(&to_one).expect("a message")), key);
        assert_eq!(hex(&two.finish(&to_two).expect("a message")), key);
    }

    #[test]
    fn code_is_read_as_people_type_it() {
        let code = JoinCode::parse("3-k7mq-2xh0").expect("a code");
        assert_eq!(code.to_string(), "3-k7mq-2xh0");
        for same in ["3-K7MQ-2XHO", " 3-k7mq2xh0\n", "3-k7mq 2xho"] {
            assert!(JoinCode::parse(same) == Some(code.clone()), "{same}");
        }
        for wrong in
            ["", "3", "3-k7mq-2xh", "3-k7mq-2xh00", "0-k7mq-2xh0", "17-k7mq-2xh0", "3-k7mq-2xhu"]
        {
            assert!(JoinCode::parse(wrong).is_none(), "{wrong}");
        }
        let made = JoinCode { slot: 16, secret: JoinSecret::random(&mut OsRng) };
        assert!(JoinCode::parse(&made.to_string()) == Some(made));
    }

    /// Returns the keys of two machines that know these secrets, and their messages.
    fn exchanged(one: &str, other: &str) -> ([SharedKey; 2], [Vec<u8>; 2]) {
        let secret = |text: &str| JoinCode::parse(text).expect("a code").secret;
        let (device, first) = Exchange::begin(JoinRole::Device, &secret(one), &mut OsRng);
        let (server, second) = Exchange::begin(JoinRole::Server, &secret(other), &mut OsRng);
        let keys = [device.end(&second), server.end(&first)].map(|key| key.expect("a message"));
        (keys, [first, second])
    }

    #[test]
    fn confirmation_covers_each_part_and_the_role() {
        let ([device, server], messages) = exchanged("1-k7mq-2xhd", "1-k7mq-2xhd");
        let messages = [&*messages[0], &*messages[1]];
        let of = Transcript {
            kind: "device",
            slot: 1,
            name: "laptop",
            ca: "the CA",
            request: "a request",
            messages,
            exporter: &[7; EXPORTER_BYTES],
        };
        let proof = device.confirmation(JoinRole::Device, &of);
        assert!(server.accepts(JoinRole::Device, &of, &proof));
        assert!(!server.accepts(JoinRole::Server, &of, &proof), "sent back to the device");
        assert!(!server.accepts(JoinRole::Device, &of, &proof[1..]), "a part of it");
        let others = [
            Transcript { kind: "node", ..of },
            Transcript { slot: 2, ..of },
            Transcript { name: "laptop2", ..of },
            Transcript { ca: "another CA", ..of },
            Transcript { request: "another request", ..of },
            Transcript { messages: [messages[1], messages[0]], ..of },
            Transcript { exporter: &[8; EXPORTER_BYTES], ..of },
            Transcript { kind: "device\u{1}", slot: 1, ..of },
        ];
        for other in others {
            assert!(!server.accepts(JoinRole::Device, &other, &proof), "{other:?}");
        }
    }

    #[test]
    fn another_code_and_a_malformed_message_give_no_key() {
        let ([device, server], messages) = exchanged("1-k7mq-2xhd", "1-k7mq-2xhe");
        assert_ne!(device.0, server.0);
        let secret = JoinSecret::random(&mut OsRng);
        let begin = || Exchange::begin(JoinRole::Server, &secret, &mut OsRng);
        let (_, own) = begin();
        for wrong in [&[][..], &messages[0][1..], &own, &[0xff; 33]] {
            assert!(begin().0.end(wrong).is_none(), "{wrong:?}");
        }
    }
}
