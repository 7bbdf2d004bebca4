//! A set that is created once and then searched.

use std::borrow::Borrow;
use std::collections::BinaryHeap;

/// The distinct values of a list, in order.
///
/// The sorts and trees of the standard library are made for millions of values, and each type of value adds five
/// kilobytes of code to the file that all plugins share. A heap sorts with a tenth of that.
#[derive(Debug)]
pub struct SortedSet<T>(Vec<T>);

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        SortedSet(Vec::new())
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut sorted = BinaryHeap::from_iter(values).into_sorted_vec();
        sorted.dedup();
        SortedSet(sorted)
    }
}

impl<T: Ord> SortedSet<T> {
    /// Returns whether the set has this value.
    pub fn contains<Q: Ord + ?Sized>(&self, wanted: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.binary_search_by(|value| value.borrow().cmp(wanted)).is_ok()
    }
}

impl<T> SortedSet<T> {
    /// Returns whether the set has no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the values in ascending order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }
}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_each_value_once_and_in_order() {
        let set: SortedSet<String> = ["b", "c", "a", "b", "c"].map(str::to_owned).into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(set.contains("a") && set.contains("c") && !set.contains("aa") && !set.contains(""));
        assert!(!set.is_empty() && SortedSet::<u64>::default().is_empty());
    }
}
