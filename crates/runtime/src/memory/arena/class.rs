//! The sizes that an arena's blocks have.

/// A size of blocks: every 16 bytes up to 128, then four sizes for each doubling, so that at most a fifth of
/// a block is unused. (The spacing of jemalloc's classes.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

/// Classes up to 8 KiB: blocks of these are kept for each CPU.
pub(super) const SMALL_CLASSES: usize = 32;
/// All classes, up to 256 KiB.
pub(super) const CLASSES: usize = 52;

const STEP_BYTES: usize = 16;
/// Up to here the step is the same.
const EVEN_BYTES: usize = 128;
const EVEN_CLASSES: usize = EVEN_BYTES / STEP_BYTES;
/// Blocks change hands in batches of about so many bytes.
const BATCH_BYTES: usize = 16 << 10;

impl Class {
    /// The least class for so many bytes at this alignment (a power of two); none for what is larger than
    /// them all.
    #[inline]
    pub(super) fn of(bytes: usize, align: usize) -> Option<Self> {
        let bytes = bytes.max(align).max(1);
        let index = if bytes <= EVEN_BYTES {
            (bytes - 1) / STEP_BYTES
        } else {
            let doubling = (bytes - 1).ilog2() as usize;
            EVEN_CLASSES + (doubling - 7) * 4 + ((bytes - 1) >> (doubling - 2)) - 4
        };
        if align <= STEP_BYTES {
            return (index < CLASSES).then_some(Self(index as u8));
        }
        // At most four steps: a power of two is aligned to itself, and not less than `align`.
        (index..CLASSES).map(|index| Self(index as u8)).find(|class| class.align() >= align)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline]
    pub(super) fn bytes(self) -> usize {
        SIZES[self.index()].bytes as usize
    }

    /// The alignment of its blocks: the greatest power of two that divides the size.
    pub(super) fn align(self) -> usize {
        1 << self.bytes().trailing_zeros()
    }

    pub(super) fn is_small(self) -> bool {
        self.index() < SMALL_CLASSES
    }

    /// Blocks in a batch.
    #[inline]
    pub(super) fn batch(self) -> usize {
        SIZES[self.index()].batch as usize
    }
}

#[derive(Clone, Copy)]
struct Size {
    bytes: u32,
    batch: u32,
}

const SIZES: [Size; CLASSES] = {
    let mut sizes = [Size { bytes: 0, batch: 0 }; CLASSES];
    let mut index = 0;
    while index < CLASSES {
        let bytes = if index < EVEN_CLASSES {
            (index + 1) * STEP_BYTES
        } else {
            let above = index - EVEN_CLASSES;
            (above % 4 + 5) << (5 + above / 4)
        };
        let batch = match BATCH_BYTES / bytes {
            0 => 1,
            65.. => 64,
            blocks => blocks,
        };
        sizes[index] = Size { bytes: bytes as u32, batch: batch as u32 };
        index += 1;
    }
    sizes
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_ascend_and_are_their_own_classes() {
        let sizes: Vec<usize> = (0..CLASSES).map(|index| Class(index as u8).bytes()).collect();
        assert_eq!(sizes[..12], [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256]);
        assert!(sizes.is_sorted());
        assert_eq!((sizes[SMALL_CLASSES - 1], sizes[CLASSES - 1]), (8 << 10, 256 << 10));
        for (index, &bytes) in sizes.iter().enumerate() {
            assert_eq!(Class::of(bytes, 1), Some(Class(index as u8)));
        }
        assert_eq!(Class::of((256 << 10) + 1, 1), None);
        assert_eq!(Class::of(1, 512 << 10), None);
    }

    proptest! {
        #[test]
        fn a_class_is_the_least_that_fits(bytes in 0..300_000_usize, shift in 0..20) {
            let align = 1_usize << shift;
            let fits = |class: &Class| class.bytes() >= bytes.max(1) && class.align() >= align;
            let least = (0..CLASSES).map(|index| Class(index as u8)).find(fits);
            prop_assert_eq!(Class::of(bytes, align), least);
        }
    }
}
