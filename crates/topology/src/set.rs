//! Sets of CPUs and of nodes: bitmaps that read and write the kernel's list format, `0-3,8,10-11`.

use crate::error::ParseError;
use crate::ids::{CpuId, NodeId};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{BitAnd, BitOr, RangeInclusive, Sub};
use std::str::FromStr;

/// Ids a set can hold: the kernel numbers of CPUs and nodes.
pub trait Id: Copy + fmt::Display {
    /// The kernel's number.
    fn number(self) -> u32;
    /// The id with this kernel number.
    fn from_number(number: u32) -> Self;
}

impl Id for CpuId {
    fn number(self) -> u32 {
        self.0
    }
    fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl Id for NodeId {
    fn number(self) -> u32 {
        self.0
    }
    fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// A set of ids as a bitmap. Text, words and serde forms are the kernel's: `0-3,8`, one bit an id from the
/// least significant bit of the first word, a list of numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdSet<I> {
    // Without trailing zero words, so that derived equality is equality of sets.
    words: Vec<u64>,
    id: PhantomData<I>,
}

/// A set of logical CPUs.
pub type CpuSet = IdSet<CpuId>;
/// A set of NUMA nodes.
pub type NodeSet = IdSet<NodeId>;

/// Ids above this are refused when text is read: no kernel has them (`NR_CPUS` is at most 8192,
/// `MAX_NUMNODES` 1024), and a bitmap up to a mistyped 4000000000 would take half a gigabyte.
pub const MAX_ID: u32 = 65_535;

impl<I: Id> IdSet<I> {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new(), id: PhantomData }
    }

    /// The set of all ids whose numbers lie in the range.
    #[must_use]
    pub fn from_range(range: RangeInclusive<u32>) -> Self {
        range.map(I::from_number).collect()
    }

    /// The set whose bitmap these words are.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Self {
        let mut set = Self { words: words.to_vec(), id: PhantomData };
        set.trim();
        set
    }

    /// The bitmap, as system calls take it: id `n` is bit `n % 64` of word `n / 64`. No trailing zero words;
    /// empty for the empty set.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds an id; says whether it was new.
    pub fn insert(&mut self, id: I) -> bool {
        let (word, bit) = place(id);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Takes an id out; says whether it was there.
    pub fn remove(&mut self, id: I) -> bool {
        let (word, bit) = place(id);
        let Some(bits) = self.words.get_mut(word) else { return false };
        let there = *bits & bit != 0;
        *bits &= !bit;
        self.trim();
        there
    }

    /// Whether the id is in the set.
    #[must_use]
    pub fn contains(&self, id: I) -> bool {
        let (word, bit) = place(id);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// How many ids the set holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Whether the set holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest id.
    #[must_use]
    pub fn first(&self) -> Option<I> {
        self.iter().next()
    }

    /// The highest id.
    #[must_use]
    pub fn last(&self) -> Option<I> {
        let last = self.words.last()?;
        Some(I::from_number((self.words.len() as u32) * 64 - 1 - last.leading_zeros()))
    }

    /// The ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = I> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &bits)| {
            std::iter::successors(Some(bits), |rest| Some(rest & rest.wrapping_sub(1)))
                .take_while(|&rest| rest != 0)
                .map(move |rest| I::from_number(index as u32 * 64 + rest.trailing_zeros()))
        })
    }

    /// The maximal runs of consecutive ids, in ascending order: `0-3,8` has two.
    #[must_use]
    pub fn ranges(&self) -> Vec<RangeInclusive<u32>> {
        let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
        for number in self.iter().map(I::number) {
            match ranges.last_mut() {
                Some(range) if *range.end() + 1 == number => *range = *range.start()..=number,
                _ => ranges.push(number..=number),
            }
        }
        ranges
    }

    /// Whether every id of this set is in the other.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        let beyond = |(index, bits): (usize, &u64)| bits & !other.words.get(index).copied().unwrap_or(0) != 0;
        !self.words.iter().enumerate().any(beyond)
    }

    /// Whether the sets share an id.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Reads the kernel's mask format, `00000000,0000000f`: hexadecimal words of 32 bits, most significant
    /// first (`bitmap_parse` in lib/bitmap.c, Linux 6.1).
    pub fn from_mask(text: &str) -> Result<Self, ParseError> {
        let groups: Vec<&str> = text.trim_end().split(',').collect();
        if groups.len() > (MAX_ID as usize + 1) / 32 {
            return Err(ParseError::new("a mask of at most 65536 bits", text));
        }
        let mut words = vec![0; groups.len().div_ceil(2)];
        for (place, group) in groups.iter().rev().enumerate() {
            // from_str_radix takes a sign, masks have none.
            let hex = (1..=8).contains(&group.len()) && group.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u32::from_str_radix(group, 16).ok().filter(|_| hex);
            let value =
                value.ok_or_else(|| ParseError::new("a hexadecimal mask like 00000000,0000000f", group))?;
            words[place / 2] |= u64::from(value) << (place % 2 * 32);
        }
        Ok(Self::from_words(&words))
    }

    fn combine(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        let at = |set: &Self, index| set.words.get(index).copied().unwrap_or(0);
        let len = self.words.len().max(other.words.len());
        let words: Vec<u64> = (0..len).map(|index| op(at(self, index), at(other, index))).collect();
        Self::from_words(&words)
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

fn place<I: Id>(id: I) -> (usize, u64) {
    (id.number() as usize / 64, 1 << (id.number() % 64))
}

impl<I: Id> Default for IdSet<I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Id> FromIterator<I> for IdSet<I> {
    fn from_iter<T: IntoIterator<Item = I>>(ids: T) -> Self {
        let mut set = Self::new();
        set.extend(ids);
        set
    }
}

impl<I: Id> Extend<I> for IdSet<I> {
    fn extend<T: IntoIterator<Item = I>>(&mut self, ids: T) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl<I: Id> BitOr for &IdSet<I> {
    type Output = IdSet<I>;
    /// The ids in either set.
    fn bitor(self, other: Self) -> IdSet<I> {
        self.combine(other, |a, b| a | b)
    }
}

impl<I: Id> BitAnd for &IdSet<I> {
    type Output = IdSet<I>;
    /// The ids in both sets.
    fn bitand(self, other: Self) -> IdSet<I> {
        self.combine(other, |a, b| a & b)
    }
}

impl<I: Id> Sub for &IdSet<I> {
    type Output = IdSet<I>;
    /// The ids in this set that are not in the other.
    fn sub(self, other: Self) -> IdSet<I> {
        self.combine(other, |a, b| a & !b)
    }
}

/// The kernel's list format; nothing for the empty set.
impl<I: Id> fmt::Display for IdSet<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces: Vec<String> = self
            .ranges()
            .iter()
            .map(|range| match (range.start(), range.end()) {
                (start, end) if start == end => start.to_string(),
                (start, end) => format!("{start}-{end}"),
            })
            .collect();
        f.pad(&pieces.join(","))
    }
}

impl<I: Id> fmt::Debug for IdSet<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// Reads the kernel's list format. Whitespace around it is ignored and nothing at all is the empty set, as in
/// sysfs files; the error carries the piece that is wrong.
impl<I: Id> FromStr for IdSet<I> {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let text = text.trim();
        let mut set = Self::new();
        if text.is_empty() {
            return Ok(set);
        }
        for piece in text.split(',') {
            let malformed = || ParseError::new("a list like 0-3,8,10-11", piece);
            let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
            let (first, last) = (number(first).ok_or_else(malformed)?, number(last).ok_or_else(malformed)?);
            if last > MAX_ID {
                return Err(ParseError::new("numbers up to 65535", piece));
            }
            if first > last {
                return Err(ParseError::new("a range from the lower to the higher number", piece));
            }
            set.extend((first..=last).map(I::from_number));
        }
        Ok(set)
    }
}

/// `str::parse` takes a leading `+`, the kernel's lists do not.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl<I: Id> Serialize for IdSet<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(I::number))
    }
}

impl<'de, I: Id> Deserialize<'de> for IdSet<I> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers<I>(PhantomData<I>);
        impl<'de, I: Id> Visitor<'de> for Numbers<I> {
            type Value = IdSet<I>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers up to 65535")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Self::Value, A::Error> {
                let mut set = IdSet::new();
                while let Some(number) = numbers.next_element::<u32>()? {
                    if number > MAX_ID {
                        return Err(serde::de::Error::invalid_value(
                            serde::de::Unexpected::Unsigned(number.into()),
                            &self,
                        ));
                    }
                    set.insert(I::from_number(number));
                }
                Ok(set)
            }
        }
        deserializer.deserialize_seq(Numbers(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn reads_and_writes_the_kernels_lists() {
        assert_eq!(cpus("0-3,8,10-11\n").iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpus("8,0,1,2,3,10-11").to_string(), "0-3,8,10-11");
        assert_eq!(cpus("\n"), CpuSet::new());
        assert_eq!(CpuSet::new().to_string(), "");
    }

    #[test]
    fn names_the_piece_that_is_wrong() {
        for (text, piece) in [
            ("0,x", "x"),
            ("0-", "0-"),
            ("3-1", "3-1"),
            ("0,,1", ""),
            ("+1", "+1"),
            ("-1", "-1"),
            ("70000", "70000"),
        ] {
            let error = text.parse::<CpuSet>().unwrap_err();
            assert!(error.to_string().ends_with(&format!("found '{piece}'")), "{text}: {error}");
        }
    }

    #[test]
    fn reads_masks() {
        assert_eq!(CpuSet::from_mask("00000001,00000000,0000000f\n").unwrap(), cpus("0-3,64"));
        assert_eq!(CpuSet::from_mask("ff").unwrap(), cpus("0-7"));
        for text in ["", "0x1", "+1", "123456789", "1,,1", "g"] {
            assert!(CpuSet::from_mask(text).is_err(), "{text}");
        }
    }

    #[test]
    fn serializes_as_numbers_and_refuses_absurd_ones() {
        assert_eq!(serde_json::to_string(&cpus("0-1,5")).unwrap(), "[0,1,5]");
        assert_eq!(serde_json::from_str::<CpuSet>("[5,0,1]").unwrap(), cpus("0-1,5"));
        assert!(serde_json::from_str::<CpuSet>("[4000000000]").is_err());
    }

    fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
        // Dense low numbers make runs, sparse high ones make empty words.
        proptest::collection::btree_set(prop_oneof![0..70u32, 0..=MAX_ID], 0..40)
    }

    fn set(numbers: &BTreeSet<u32>) -> CpuSet {
        numbers.iter().map(|&n| CpuId(n)).collect()
    }

    proptest! {
        #[test]
        fn every_form_comes_back(numbers in numbers()) {
            let set = set(&numbers);
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert_eq!(CpuSet::from_words(set.words()), set.clone());
            let json = serde_json::to_string(&set).unwrap();
            prop_assert_eq!(serde_json::from_str::<CpuSet>(&json).unwrap(), set.clone());
            let mask: Vec<String> =
                set.words().iter().rev().flat_map(|w| [w >> 32, w & 0xffff_ffff]).map(|w| format!("{w:08x}")).collect();
            if !mask.is_empty() {
                prop_assert_eq!(CpuSet::from_mask(&mask.join(",")).unwrap(), set);
            }
        }

        #[test]
        fn behaves_as_a_set_of_numbers(a in numbers(), b in numbers()) {
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(&x | &y, set(&(&a | &b)));
            prop_assert_eq!(&x & &y, set(&(&a & &b)));
            prop_assert_eq!(&x - &y, set(&(&a - &b)));
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.first().map(|c| c.0), a.first().copied());
            prop_assert_eq!(x.last().map(|c| c.0), a.last().copied());
            let mut emptied = x.clone();
            for id in x.iter() {
                prop_assert!(emptied.remove(id));
                prop_assert!(!emptied.remove(id));
            }
            prop_assert_eq!(emptied, CpuSet::new());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-0-9,a-f\n ]{0,40}") {
            let _ = text.parse::<CpuSet>();
            let _ = CpuSet::from_mask(&text);
        }
    }
}
