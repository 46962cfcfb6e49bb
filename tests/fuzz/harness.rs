//! Runs a decoder on valid inputs and on mutations of them. A failure prints the number from which
//! the same inputs are made again.

use crate::memory::measured;
use crate::mutations::{Random, mutated};
use latchfs::time::boot_now;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The number of inputs for each decoder in a normal test run.
const CASES: usize = 20_000;
/// Mutations for each valid input.
const MUTATIONS: usize = 15;

/// Returns how many inputs each decoder gets.
pub(crate) fn cases() -> usize {
    setting("LATCHFS_FUZZ_CASES").map_or(CASES, |cases| cases as usize)
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")))
}

/// A source of values, which depends on one number only.
pub(crate) struct Source {
    pub(crate) random: Random,
    runner: TestRunner,
}

impl Source {
    fn new(number: u64) -> Self {
        let mut random = Random::new(number);
        let seed: Vec<u8> = (0..4).flat_map(|_| random.next().to_le_bytes()).collect();
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        Self { random, runner: TestRunner::new_with_rng(Config::default(), rng) }
    }

    pub(crate) fn draw<T>(&mut self, strategy: &impl Strategy<Value = T>) -> T {
        strategy.new_tree(&mut self.runner).expect("no value is filtered out").current()
    }
}

/// A decoder under test.
pub(crate) struct Target<'a> {
    /// The name of the test, for the command that repeats a failure.
    pub(crate) name: &'a str,
    /// Texts that mean something to the decoder.
    pub(crate) words: &'a [&'a [u8]],
    /// Decodes an input, checks the result, and returns whether the decoder accepted it. Decoding
    /// must not take more than the returned memory in bytes.
    pub(crate) check: &'a dyn Fn(&[u8]) -> (bool, usize),
}

impl Target<'_> {
    /// Tries the inputs that `valid` returns, which must be accepted, and mutations of them.
    pub(crate) fn run(&self, mut valid: impl FnMut(&mut Source) -> Vec<Vec<u8>>) {
        let first = setting("LATCHFS_FUZZ_SEED").unwrap_or_else(|| boot_now().as_nanos());
        let (began, count) = (boot_now(), cases());
        let (mut tried, mut accepted, mut ratio) = (0, 0, 0);
        for number in (0..).map(|group| first.wrapping_add(group)) {
            if tried >= count {
                break;
            }
            let mut source = Source::new(number);
            let inputs = valid(&mut source);
            for input in &inputs {
                let (is_valid, _) = self.attempt(number, input);
                assert!(is_valid, "{}: refused a valid input: {input:02x?}", self.name);
            }
            for _ in 0..MUTATIONS * inputs.len() {
                let random = &mut source.random;
                let (one, other) = (random.below(inputs.len()), random.below(inputs.len()));
                let input = mutated(random, &inputs[one], &inputs[other], self.words);
                let (is_accepted, taken) = self.attempt(number, &input);
                accepted += usize::from(is_accepted);
                ratio = ratio.max(taken / (input.len() + 64));
            }
            tried += (MUTATIONS + 1) * inputs.len();
        }
        let took = boot_now().since(began);
        println!(
            "{}: {tried} inputs in {took}, {accepted} mutations accepted, at most {ratio} bytes of \
             memory for a byte",
            self.name
        );
        assert!(accepted < tried, "{}: everything is accepted", self.name);
    }

    /// Tries one input. Returns whether it was accepted, and the memory that it took.
    fn attempt(&self, number: u64, input: &[u8]) -> (bool, usize) {
        let tried = catch_unwind(AssertUnwindSafe(|| {
            let ((is_accepted, room), taken) = measured(|| (self.check)(input));
            assert!(taken <= room, "{taken} bytes of memory for {} bytes", input.len());
            (is_accepted, taken)
        }));
        tried.unwrap_or_else(|cause| {
            let shown = &input[..input.len().min(2_000)];
            eprintln!(
                "the input was {} bytes: {shown:02x?}\nas text: {}\nrepeat it by: \
                 LATCHFS_FUZZ_SEED={number} LATCHFS_FUZZ_CASES=1 cargo test --test fuzz {}",
                input.len(),
                String::from_utf8_lossy(shown),
                self.name
            );
            resume_unwind(cause)
        })
    }
}
