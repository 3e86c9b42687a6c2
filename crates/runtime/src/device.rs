//! Nodes near a device.

use crate::error::{Error, Result};
use nodewise_topology::{Allowed, Lists, NodeId, NodeSet, Topology};
use std::path::Path;

/// The nodes nearest to a device, of those with a CPU that the calling thread may use: to run a pool on
/// ([`crate::NodePoolBuilder::nodes`]), bind a thread to ([`bind_thread`]) or put memory on.
///
/// A device is named as the system names it (`eth0`, `nvme0n1`, `card0`, `mlx5_0`), by its PCI address
/// (`0000:3b:00.0`), or as numactl names it: `netdev:eth0`, `block:sda`, `pci:3b:00`, `ip:192.0.2.1` (the
/// interface that routes there), `file:/path` (the disk it lies on). Most often it is one node; several where
/// the firmware names several, or where the device's own has no CPU and others are as near.
///
/// # Errors
/// [`crate::ErrorKind::Device`]: there is no such device, or the firmware does not say where it is.
/// [`crate::ErrorKind::Machine`]: `/sys` or `/proc` cannot be read.
pub fn nodes_near(device: &str) -> Result<NodeSet> {
    let topology = Topology::live()?;
    let allowed = Allowed::of_this_thread(&topology)?;
    let at = nodes_of(&topology, device)?;
    Ok(nearest_with_cpus(&topology, &allowed, &at))
}

/// Confines the calling thread to the CPUs of these nodes, as far as it may use them.
///
/// # Errors
/// [`crate::ErrorKind::Thread`]: there is none it may use. [`crate::ErrorKind::Machine`]: `/sys` or `/proc`
/// cannot be read.
pub fn bind_thread(nodes: &NodeSet) -> Result<()> {
    if nodes.is_empty() {
        return Err(Error::no_nodes());
    }
    let topology = Topology::live()?;
    let allowed = Allowed::of_this_thread(&topology)?;
    let of_nodes = topology.nodes().iter().filter(|node| nodes.contains(node.id));
    let cpus = of_nodes.flat_map(|node| node.cpus.iter()).filter(|&cpu| allowed.cpus.contains(cpu));
    let cpus: nodewise_sys::AffinityMask = cpus.map(|cpu| cpu.0).collect();
    nodewise_sys::sched_setaffinity(0, &cpus)
        .map_err(|error| Error::thread(format!("cannot bind this thread to nodes {nodes}"), error))
}

/// The nodes a device is attached to.
fn nodes_of(topology: &Topology, device: &str) -> Result<NodeSet> {
    let named = |known: &&nodewise_topology::Device| {
        known.name == device || known.pci_address.as_deref() == Some(device)
    };
    if let Some(known) = topology.devices().iter().find(named) {
        let node = known.node.ok_or_else(|| {
            Error::device(format!("the firmware does not say which node {device} is attached to"))
        })?;
        return Ok([node].into_iter().collect());
    }
    if device.is_empty() {
        return Err(Error::device("the device has no name".to_owned()));
    }
    if !device.contains(':') {
        return Err(Error::device(format!("there is no device {device}; `nodewise topo` lists them")));
    }
    let lists = Lists::new(topology, Allowed::everything(topology), Path::new("/"));
    lists.memory_nodes(device).map_err(|error| Error::device(error.to_string()))
}

/// The nodes with allowed CPUs at the least distance from any of `at`.
fn nearest_with_cpus(topology: &Topology, allowed: &Allowed, at: &NodeSet) -> NodeSet {
    let from: Vec<_> = at.iter().filter_map(|node| topology.index_of(node)).collect();
    let usable = topology.nodes().iter().filter(|node| node.cpus.intersects(&allowed.cpus));
    let distance = |id: NodeId| {
        let to = topology.index_of(id)?;
        // A node is nearer to itself than to any other, whatever the table says.
        from.iter().map(|&from| if from == to { 0 } else { topology.distance(from, to) }).min()
    };
    let distances: Vec<_> = usable.filter_map(|node| Some((distance(node.id)?, node.id))).collect();
    let least = distances.iter().map(|&(distance, _)| distance).min();
    distances.into_iter().filter(|&(distance, _)| Some(distance) == least).map(|(_, id)| id).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Nodes 0 and 1 with a CPU each, and node 2 without, as far from either; a network interface, a disk and
    /// a graphics card on one node each, and a card of which nobody says where it is.
    fn machine(directory: &Path) -> Topology {
        let write = |path: &str, text: &str| {
            let path = directory.join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for list in ["possible", "present", "online"] {
            write(&format!("cpu/{list}"), "0-1\n");
        }
        write("node/online", "0-2\n");
        for (node, cpus, distances) in [(0, "0", "10 20 30"), (1, "1", "20 10 30"), (2, "", "30 30 10")] {
            write(&format!("node/node{node}/cpulist"), &format!("{cpus}\n"));
            write(&format!("node/node{node}/distance"), &format!("{distances}\n"));
            write(
                &format!("node/node{node}/meminfo"),
                &format!("Node {node} MemTotal: 1024 kB\nNode {node} MemFree: 512 kB\n"),
            );
        }
        for (device, function, node) in [
            ("net/eth0", "0000:01:00.0", 0),
            ("block/nvme0n1", "0000:02:00.0", 1),
            ("drm/card0", "0000:03:00.0", 2),
            ("drm/card1", "0000:04:00.0", -1),
        ] {
            let entry = directory.join("sys/class").join(device);
            let place = format!("sys/devices/pci0000:00/{function}");
            write(&format!("../pci0000:00/{function}/numa_node"), &format!("{node}\n"));
            fs::create_dir_all(&entry).unwrap();
            symlink(format!("../../../../{place}"), entry.join("device")).unwrap();
        }
        Topology::from_root(directory).unwrap()
    }

    /// The machine, from a directory that each test has for itself.
    fn read_machine(test: &str) -> Topology {
        let directory = std::env::temp_dir().join(format!("nodewise-{test}-{}", std::process::id()));
        let topology = machine(&directory);
        fs::remove_dir_all(&directory).unwrap();
        topology
    }

    #[test]
    fn interfaces_disks_and_graphics_cards_have_their_nodes() {
        let topology = read_machine("devices");
        let nodes = |device: &str| nodes_of(&topology, device).map(|nodes| nodes.to_string());
        for (device, node) in [("eth0", "0"), ("nvme0n1", "1"), ("card0", "2"), ("0000:03:00.0", "2")] {
            assert_eq!(nodes(device).unwrap(), node, "{device}");
        }
        let error = nodes("card1").unwrap_err();
        assert!(error.to_string().contains("firmware does not say"), "{error}");
    }

    #[test]
    fn a_device_of_a_node_without_cpus_is_near_those_as_far_from_it() {
        let topology = read_machine("near");
        let near = |list: &str, cpus: &str| {
            let allowed = Allowed { cpus: cpus.parse().unwrap(), ..Allowed::everything(&topology) };
            nearest_with_cpus(&topology, &allowed, &list.parse().unwrap()).to_string()
        };
        assert_eq!(near("1", "0-1"), "1");
        assert_eq!(near("1", "0"), "0");
        assert_eq!(near("2", "0-1"), "0-1");
        assert_eq!(near("0,2", "0-1"), "0");
    }

    #[test]
    fn what_is_not_there_is_named() {
        for device in ["nothing0", "netdev:nothing0", "bogus:1", "0000:ff:1f.7"] {
            let error = nodes_near(device).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Device, "{error}");
            assert!(
                error.to_string().contains(device.split_once(':').map_or(device, |(_, name)| name)),
                "{error}"
            );
        }
    }

    #[test]
    fn nothing_at_all_is_called_so() {
        let error = nodes_near("").unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Device, "the device has no name"));
        let error = bind_thread(&NodeSet::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Thread);
        assert!(error.to_string().contains("no nodes"), "{error}");
    }

    #[test]
    fn a_thread_is_bound_where_it_may_run_only() {
        std::thread::spawn(|| {
            let node = crate::current_node();
            bind_thread(&[node].into_iter().collect()).unwrap();
            assert_eq!(crate::current_node(), node);
            let nowhere = bind_thread(&"1000".parse().unwrap()).unwrap_err();
            assert_eq!(nowhere.kind(), ErrorKind::Thread);
        })
        .join()
        .unwrap();
    }
}
