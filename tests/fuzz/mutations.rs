//! Mutations of bytes: changed bits, numbers at the bounds of their types, and parts that are
//! removed, repeated, cut off or taken from another input.

/// Numbers at which lengths and counts go wrong.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x3fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 53,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// How often a part is repeated so often that the input becomes long: once in this many mutations.
const LONG_EVERY: usize = 2_000;
/// The length up to which a part is repeated.
const LONG_BYTES: usize = 100_000;

/// A source of random numbers: splitmix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, or 0 if there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Returns a number of any magnitude.
    pub(crate) fn number(&mut self) -> u64 {
        if self.below(2) == 0 {
            return NUMBERS[self.below(NUMBERS.len())];
        }
        let shift = self.below(64);
        self.next() >> shift
    }

    pub(crate) fn bytes(&mut self, end: usize) -> Vec<u8> {
        (0..self.below(end)).map(|_| self.next() as u8).collect()
    }

    /// Returns a range within `length`, usually a short one.
    fn range(&mut self, length: usize) -> (usize, usize) {
        let from = self.below(length + 1);
        let most = if self.below(4) == 0 { length - from } else { (length - from).min(16) };
        (from, from + self.below(most + 1))
    }
}

/// Returns `bytes` after one to four mutations. `other` is another valid input, and `words` are
/// texts that mean something to the decoder.
pub(crate) fn mutated(random: &mut Random, bytes: &[u8], other: &[u8], words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        mutate(random, &mut bytes, other, words);
    }
    bytes
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8], words: &[&[u8]]) {
    let at = random.below(bytes.len());
    let (from, to) = random.range(bytes.len());
    match random.below(11) {
        0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        2 if !bytes.is_empty() => bytes[at] = random.number() as u8,
        3 if !bytes.is_empty() => {
            let step = [1, u8::MAX, 2, 16][random.below(4)];
            bytes[at] = bytes[at].wrapping_add(step);
        }
        4 => {
            let number = random.number();
            bytes.splice(from..to, leb128(number));
        }
        5 => drop(bytes.drain(from..to)),
        6 => {
            let part = bytes[from..to].to_vec();
            bytes.splice(from..from, part);
        }
        7 => {
            let (begin, end) = random.range(other.len());
            bytes.splice(from..to, other[begin..end].iter().copied());
        }
        8 if random.below(LONG_EVERY / 11) == 0 && from < to => {
            let part = bytes[from..to].to_vec();
            let count = LONG_BYTES / part.len();
            let many = [leb128(count as u64), part.repeat(count)].concat();
            bytes.splice(from..to, many);
        }
        8 => bytes.truncate(from),
        9 if !words.is_empty() => {
            let word = random.pick(words).to_vec();
            bytes.splice(from..to, word);
        }
        _ => {
            let more = random.bytes(9);
            bytes.splice(from..from, more);
        }
    }
}

/// Returns a number in the encoding of lengths.
fn leb128(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}
