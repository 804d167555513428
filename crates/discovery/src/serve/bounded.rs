//! Limits on what one proxy is sent: if resources exceed a limit, the largest are left out.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use api::Resource;

/// Values in the order in which they were added, as long as they fit.
#[derive(Debug)]
pub(crate) struct Bounded<T> {
    /// Bytes of one value.
    each: usize,
    /// Bytes of all values.
    all: usize,
    kept: BinaryHeap<Kept<T>>,
    bytes: usize,
    added: usize,
    left_out: Vec<LeftOut>,
}

/// A resource that is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Its position among the added values.
    pub index: usize,
    pub name: Arc<str>,
    pub bytes: usize,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    TooLarge,
    /// It is the largest, and all together exceed the limit.
    TooMuch,
}

#[derive(Debug)]
struct Kept<T> {
    index: usize,
    name: Arc<str>,
    bytes: usize,
    value: T,
}

impl<T> Bounded<T> {
    pub(crate) fn new(each: usize, all: usize) -> Bounded<T> {
        Bounded { each, all, kept: BinaryHeap::new(), bytes: 0, added: 0, left_out: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: Arc<str>, bytes: usize, value: T) {
        let added = Kept { index: self.added, name, bytes, value };
        self.added += 1;
        if bytes > self.each {
            return self.leave_out(added, Why::TooLarge);
        }
        self.bytes += bytes;
        self.kept.push(added);
        while self.bytes > self.all
            && let Some(largest) = self.kept.pop()
        {
            self.bytes -= largest.bytes;
            self.leave_out(largest, Why::TooMuch);
        }
    }

    fn leave_out(&mut self, Kept { index, name, bytes, .. }: Kept<T>, why: Why) {
        self.left_out.push(LeftOut { index, name, bytes, why });
    }

    /// Whether a value was left out, so that further values are likely to be left out too.
    pub(crate) fn is_exceeded(&self) -> bool {
        !self.left_out.is_empty()
    }

    /// The values that fit, with their positions, and those that do not.
    pub(crate) fn finish(self) -> (Vec<(usize, T)>, Vec<LeftOut>) {
        let mut kept: Vec<_> = self.kept.into_iter().map(|kept| (kept.index, kept.value)).collect();
        kept.sort_by_key(|(index, _)| *index);
        (kept, self.left_out)
    }
}

impl Bounded<Resource> {
    pub(crate) fn add_resource(&mut self, resource: Resource) {
        self.add(resource.name.clone(), resource.body.len(), resource);
    }
}

impl<T> Kept<T> {
    /// The largest first; of equal ones the last.
    fn rank(&self) -> (usize, usize) {
        (self.bytes, self.index)
    }
}

impl<T> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<T> Eq for Kept<T> {}

impl<T> PartialOrd for Kept<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Kept<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

#[cfg(test)]
mod tests {
    use super::Bounded;

    fn check(each: usize, all: usize, sizes: &[usize], kept: &[usize]) {
        let mut bounded = Bounded::new(each, all);
        for size in sizes {
            bounded.add("x".into(), *size, ());
        }
        let (found, left_out) = bounded.finish();
        let indexes: Vec<usize> = found.iter().map(|(index, _)| *index).collect();
        assert_eq!(indexes, kept, "{sizes:?}");
        assert_eq!(left_out.len(), sizes.len() - kept.len());
    }

    #[test]
    fn hole_04_the_largest_go_first() {
        check(10, 100, &[5, 3, 9], &[0, 1, 2]);
        check(10, 100, &[5, 11, 9], &[0, 2]);
        check(10, 10, &[5, 9, 3, 2], &[0, 2, 3]);
        check(10, 10, &[4, 4, 4], &[0, 1]);
        check(10, 0, &[4, 0], &[1]);
    }
}
