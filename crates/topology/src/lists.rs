//! Lists of nodes and CPUs as `numactl` takes them (numactl(8)): `0,2-3`, `all`, `+0-1`, `!1`, `netdev:eth0`.

use crate::allowed::Allowed;
use crate::device_nodes;
use crate::error::Error;
use crate::list_error::{ListError, ListErrorKind};
use crate::model::Topology;
use crate::root::Root;
use crate::set::{CpuSet, Id, IdSet, MAX_ID, NodeSet};
use std::path::Path;

/// Reads lists that stand for parts of one machine, as one process is allowed to use it.
///
/// A list is items with commas between: a number, a range `2-3`, `all` that is allowed, and for nodes also a
/// device, which stands for the node it hangs off: `netdev:eth0`, `block:sda`, `pci:0000:3b:00.0`
/// (`pci:3b:00.0`, `pci:3b:00`), `file:/path` (the disk the file lies on), `ip:192.0.2.1` (the interface that
/// routes there; a host name does too). A `+` before the list counts its numbers within what is allowed, a
/// `!` stands for all that is allowed but the list; both together are `!+0`.
///
/// Numbers must be allowed; of a range its ends, so that `0-33` is possible where the nodes are 0, 1, 2 and
/// 33. Where numactl takes `3-1` for 3 and hexadecimal numbers for nodes (not masks, as its manual has it),
/// this refuses both; numactl's `!` also names nodes that are not allowed, which the kernel then refuses.
#[derive(Debug)]
pub struct Lists<'a> {
    topology: &'a Topology,
    allowed: Allowed,
    root: Root,
}

/// The unit of a list, and so the numbers that it may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Cpu,
    Node,
}

impl<'a> Lists<'a> {
    /// Lists for the calling thread on the live machine.
    pub fn live(topology: &'a Topology) -> Result<Self, Error> {
        Ok(Self::new(topology, Allowed::of_this_thread(topology)?, Path::new("/")))
    }

    /// Lists for a process that may use what is given, with devices looked up below `root`.
    #[must_use]
    pub fn new(topology: &'a Topology, allowed: Allowed, root: &Path) -> Self {
        Self { topology, allowed, root: Root::new(root) }
    }

    /// The resources that the process may use.
    #[must_use]
    pub fn allowed(&self) -> &Allowed {
        &self.allowed
    }

    /// Reads a list of nodes to have memory on: only allowed nodes with memory are in it.
    pub fn memory_nodes(&self, list: &str) -> Result<NodeSet, ListError> {
        self.nodes(list, &self.allowed.memory_nodes)
    }

    /// Reads a list of nodes to run on: only nodes with an allowed CPU are in it.
    pub fn cpu_nodes(&self, list: &str) -> Result<NodeSet, ListError> {
        let usable = self.topology.nodes().iter().filter(|node| node.cpus.intersects(&self.allowed.cpus));
        self.nodes(list, &usable.map(|node| node.id).collect())
    }

    /// Reads a list as [`Lists::cpu_nodes`] does, and gives the nodes' allowed CPUs.
    pub fn cpus_of_nodes(&self, list: &str) -> Result<CpuSet, ListError> {
        let nodes = self.cpu_nodes(list)?;
        let cpus = self.topology.nodes().iter().filter(|node| nodes.contains(node.id));
        let cpus: CpuSet = cpus.flat_map(|node| node.cpus.iter()).collect();
        Ok(&cpus & &self.allowed.cpus)
    }

    /// Reads a list of CPUs to run on. There are no devices in these lists.
    pub fn cpus(&self, list: &str) -> Result<CpuSet, ListError> {
        let list = List { text: list, unit: Unit::Cpu, allowed: &self.allowed.cpus };
        list.read(|_| Ok(None))
    }

    fn nodes(&self, text: &str, allowed: &NodeSet) -> Result<NodeSet, ListError> {
        let list = List { text, unit: Unit::Node, allowed };
        list.read(|item| {
            let Some((scheme, name)) = item.split_once(':') else { return Ok(None) };
            let nodes = device_nodes::nodes_of(&self.root, self.topology.nodes(), scheme, name);
            let nodes =
                nodes.map_err(|error| ListError { kind: error.kind, ..list.error(item, &error.what) })?;
            let forbidden = &nodes - allowed;
            match forbidden.first() {
                None => Ok(Some(nodes)),
                Some(node) => Err(list.not_allowed(item, &format!("its node {node}"))),
            }
        })
    }
}

/// One list being read.
struct List<'t, I> {
    text: &'t str,
    unit: Unit,
    allowed: &'t IdSet<I>,
}

impl<I: Id> List<'_, I> {
    fn read(
        &self,
        device: impl Fn(&str) -> Result<Option<IdSet<I>>, ListError>,
    ) -> Result<IdSet<I>, ListError> {
        let rest = self.text.trim();
        let (inverse, rest) = rest.strip_prefix('!').map_or((false, rest), |rest| (true, rest));
        let (relative, rest) = rest.strip_prefix('+').map_or((false, rest), |rest| (true, rest));
        let mut set = IdSet::new();
        for item in items(rest) {
            let found = match item {
                "all" => self.allowed.clone(),
                item => match device(item)? {
                    Some(found) => found,
                    None => self.range(item, relative)?,
                },
            };
            set = &set | &found;
        }
        if inverse {
            set = self.allowed - &set;
            if set.is_empty() {
                let what = format!("leaves nothing of {}", self.allowed);
                return Err(ListError { kind: ListErrorKind::NotAllowed, ..self.error(self.text, &what) });
            }
        }
        Ok(set)
    }

    /// A number or a range, whose ends must be allowed.
    fn range(&self, item: &str, relative: bool) -> Result<IdSet<I>, ListError> {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (self.number(first, item, relative)?, self.number(last, item, relative)?);
        if first > last {
            return Err(self.error(item, "expected the lower number before the higher"));
        }
        let between = self.allowed.iter().filter(|id| (first..=last).contains(&id.number()));
        Ok(between.collect())
    }

    fn number(&self, digits: &str, item: &str, relative: bool) -> Result<u32, ListError> {
        let number: Option<u32> =
            digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let Some(number) = number.filter(|&number| number <= MAX_ID) else {
            let devices = match self.unit {
                Unit::Node => {
                    ", or a device like netdev:eth0, block:sda, pci:3b:00.0, file:/path, ip:192.0.2.1"
                }
                Unit::Cpu => "",
            };
            return Err(self.error(item, &format!("expected a number, a range like 2-3, all{devices}")));
        };
        if relative {
            let id = self.allowed.iter().nth(number as usize);
            return id.map(Id::number).ok_or_else(|| {
                self.error(
                    item,
                    &format!("there are only {} allowed to count in: {}", self.allowed.len(), self.allowed),
                )
            });
        }
        if !self.allowed.contains(I::from_number(number)) {
            return Err(self.not_allowed(item, &number.to_string()));
        }
        Ok(number)
    }

    fn not_allowed(&self, item: &str, what: &str) -> ListError {
        let what = if self.allowed.is_empty() {
            format!("{what} is not allowed, nothing is")
        } else {
            format!("{what} is not allowed, only {}", self.allowed)
        };
        ListError { kind: ListErrorKind::NotAllowed, ..self.error(item, &what) }
    }

    fn error(&self, item: &str, what: &str) -> ListError {
        let unit = match self.unit {
            Unit::Cpu => "CPU",
            Unit::Node => "node",
        };
        let place = if item == self.text { String::new() } else { format!("'{item}' in ") };
        let message = format!("{place}{unit} list '{}': {what}", self.text);
        ListError { kind: ListErrorKind::Malformed, message }
    }
}

/// The pieces between commas. The path of a file goes to the end: it may have commas in it.
fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let list = rest?;
        let (item, tail) = match list.split_once(',') {
            Some((item, tail)) if !list.starts_with("file:") => (item, Some(tail)),
            _ => (list, None),
        };
        rest = tail;
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use proptest::prelude::*;

    /// Nodes 0 to 3 with CPUs 0-3, 4-7, 8-11 and 12-15, of which the process has memory on 1 and 3 and runs
    /// on 6-13.
    fn lists(machine: &Topology) -> Lists<'_> {
        let allowed = Allowed { cpus: "6-13".parse().unwrap(), memory_nodes: "1,3".parse().unwrap() };
        Lists::new(machine, allowed, Path::new("/nowhere"))
    }

    #[test]
    fn numbers_are_counted_within_what_is_allowed() {
        let machine = Topology::synthetic(4, 4, 1 << 30);
        let lists = lists(&machine);
        let memory = |list: &str| lists.memory_nodes(list).map(|set| set.to_string());
        for (list, nodes) in [
            ("1", "1"),
            ("1,3", "1,3"),
            ("1-3", "1,3"),
            ("all", "1,3"),
            ("+0", "1"),
            ("+1", "3"),
            ("+0-1", "1,3"),
            ("!1", "3"),
            ("!+0", "3"),
            ("1,all", "1,3"),
            (" 3 ", "3"),
            ("all,1", "1,3"),
        ] {
            assert_eq!(memory(list).unwrap(), nodes, "{list}");
        }
        let cpus = |list: &str| lists.cpus(list).unwrap().to_string();
        assert_eq!(cpus("+0-1,3"), "6-7,9");
        assert_eq!(cpus("!6-12"), "13");
        assert_eq!(lists.cpu_nodes("all").unwrap().to_string(), "1-3");
        assert_eq!(lists.cpus_of_nodes("1,3").unwrap().to_string(), "6-7,12-13");
        assert_eq!(lists.cpus_of_nodes("+0").unwrap().to_string(), "6-7");
    }

    #[test]
    fn the_error_says_which_item_is_wrong() {
        let machine = Topology::synthetic(4, 4, 1 << 30);
        let lists = lists(&machine);
        let number = "expected a number, a range like 2-3, all, or a device like netdev:eth0, block:sda, pci:3b:00.0, \
                      file:/path, ip:192.0.2.1";
        for (list, error) in [
            ("", format!("node list '': {number}")),
            ("1,x", format!("'x' in node list '1,x': {number}")),
            ("1,,3", format!("'' in node list '1,,3': {number}")),
            ("1-", format!("node list '1-': {number}")),
            ("-1", format!("node list '-1': {number}")),
            ("0x3", format!("node list '0x3': {number}")),
            ("+!1", format!("'!1' in node list '+!1': {number}")),
            ("3-1", "node list '3-1': expected the lower number before the higher".into()),
            ("1,2", "'2' in node list '1,2': 2 is not allowed, only 1,3".into()),
            ("1-9", "node list '1-9': 9 is not allowed, only 1,3".into()),
            ("+2", "'2' in node list '+2': there are only 2 allowed to count in: 1,3".into()),
            ("!all", "node list '!all': leaves nothing of 1,3".into()),
            (
                "usb:1",
                "node list 'usb:1': expected netdev:, block:, pci:, file: or ip: before the colon".into(),
            ),
            ("netdev:eth0", "node list 'netdev:eth0': there is no network device eth0".into()),
        ] {
            assert_eq!(lists.memory_nodes(list).unwrap_err().to_string(), error);
        }
        let error = lists.cpus("netdev:eth0").unwrap_err();
        assert_eq!(error.to_string(), "CPU list 'netdev:eth0': expected a number, a range like 2-3, all");
        assert_eq!(lists.cpus("5").unwrap_err().kind(), ListErrorKind::NotAllowed);
    }

    proptest! {
        /// A set that is written with kernel numbers, or with places in the allowed set, comes back as that
        /// set.
        #[test]
        fn sets_come_back(allowed in proptest::collection::btree_set(0..16u32, 1..16), picks in proptest::collection::btree_set(0..16usize, 1..8)) {
            let machine = Topology::synthetic(16, 1, 1 << 30);
            let memory_nodes: NodeSet = allowed.iter().map(|&id| NodeId(id)).collect();
            let ids: Vec<u32> = allowed.into_iter().collect();
            let places: Vec<usize> = picks.into_iter().filter(|&place| place < ids.len()).collect();
            prop_assume!(!places.is_empty());
            let set: NodeSet = places.iter().map(|&place| NodeId(ids[place])).collect();
            let lists = Lists::new(&machine, Allowed { cpus: CpuSet::new(), memory_nodes: memory_nodes.clone() }, Path::new("/nowhere"));
            prop_assert_eq!(lists.memory_nodes(&set.to_string()).unwrap(), set.clone());
            let relative: Vec<String> = places.iter().map(ToString::to_string).collect();
            prop_assert_eq!(lists.memory_nodes(&format!("+{}", relative.join(","))).unwrap(), set.clone());
            let rest = &memory_nodes - &set;
            match lists.memory_nodes(&format!("!{set}")) {
                Ok(found) => prop_assert_eq!(found, rest),
                Err(error) => prop_assert!(rest.is_empty(), "{}", error),
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-!+,0-9a-fxl: /]{0,20}|(netdev|pci|block|file):.{0,20}") {
            let machine = Topology::synthetic(4, 4, 1 << 30);
            let lists = lists(&machine);
            if let Ok(nodes) = lists.memory_nodes(&text) {
                prop_assert!(!nodes.is_empty() && nodes.is_subset(&lists.allowed().memory_nodes));
            }
            if let Ok(cpus) = lists.cpus(&text) {
                prop_assert!(!cpus.is_empty() && cpus.is_subset(&lists.allowed().cpus));
            }
        }
    }
}
