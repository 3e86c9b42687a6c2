//! Lists of nodes and CPUs on captured machines, and beside the real numactl on this one.

mod captures;

use captures::Capture;
use nodewise_topology::{Allowed, ListErrorKind, Lists, Topology};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// The meaning of a node list on a machine where everything is allowed: nodes, or the kind of error.
fn nodes(root: &Path, list: &str) -> Result<String, ListErrorKind> {
    let machine = Topology::from_root(root).unwrap();
    let lists = Lists::new(&machine, Allowed::everything(&machine), root);
    lists.memory_nodes(list).map(|nodes| nodes.to_string()).map_err(|error| error.kind())
}

#[test]
fn devices_stand_for_their_nodes() {
    let capture = Capture::unpack("32em64t-2n8c+dax+nvme+mic+dimms");
    let root = capture.root();
    for (list, node) in [
        ("netdev:eth0", "0"),
        ("netdev:ib0", "1"),
        ("block:nvme0n1", "0"), // its numa_node is -1, its CPUs are 0-3
        ("block:sda", "0"),
        ("block:sda1", "0"),
        ("block:/dev/sda1", "0"),
        ("block:pmem1.2", "1"),
        ("pci:0000:82:00.0", "1"),
        ("pci:82:00.0", "1"),
        ("pci:82:00", "1"),
        ("pci:0000:82:00:0", "1"),
        ("netdev:eth0,netdev:ib0", "0-1"),
        ("netdev:ib0,0", "0-1"),
        ("!netdev:ib0", "0"),
    ] {
        assert_eq!(nodes(&root, list).as_deref(), Ok(node), "{list}");
    }
    for (list, kind) in [
        ("netdev:eth7", ListErrorKind::NoSuchDevice),
        ("netdev:", ListErrorKind::NoSuchDevice),
        ("netdev:../../class/net/ib0", ListErrorKind::NoSuchDevice),
        ("block:..", ListErrorKind::NoSuchDevice),
        ("pci:99:00.0", ListErrorKind::NoSuchDevice),
        ("pci:8z:00.0", ListErrorKind::Malformed),
        ("disk:sda", ListErrorKind::Malformed),
        ("netdev:ib0-1", ListErrorKind::NoSuchDevice),
    ] {
        assert_eq!(nodes(&root, list), Err(kind), "{list}");
    }
}

#[test]
fn a_device_whose_node_is_unknown_is_an_error() {
    let capture = Capture::unpack("40intel64-2g2n4c+pcilocality");
    assert_eq!(nodes(&capture.root(), "netdev:eth0"), Err(ListErrorKind::NodeUnknown));
    let one_node = Capture::unpack("2arm-2c");
    let net = one_node.root().join("sys/class/net");
    fs::create_dir_all(&net).unwrap();
    fs::create_dir_all(one_node.root().join("sys/devices/platform/net/eth0")).unwrap();
    symlink("../../devices/platform/net/eth0", net.join("eth0")).unwrap();
    assert_eq!(nodes(&one_node.root(), "netdev:eth0").as_deref(), Ok("0"), "the only node there is");
}

#[test]
fn a_device_made_of_others_stands_for_all_their_nodes() {
    let capture = Capture::unpack("32em64t-2n8c+dax+nvme+mic+dimms");
    let root = capture.root();
    let link = |target: &str, name: &str| {
        let name = root.join(name);
        let _ = fs::remove_file(&name);
        fs::create_dir_all(name.parent().unwrap()).unwrap();
        symlink(target, name).unwrap();
    };
    let virtual_dir = "sys/devices/virtual";
    link(
        "../../../pci0000:00/0000:00:01.1/0000:02:00.0/net/eth0",
        &format!("{virtual_dir}/net/bond0/lower_eth0"),
    );
    link(
        "../../../pci0000:80/0000:80:02.2/0000:82:00.0/net/ib0",
        &format!("{virtual_dir}/net/bond0/lower_ib0"),
    );
    link("../bond0", &format!("{virtual_dir}/net/vlan7/lower_bond0"));
    link("../vlan7", &format!("{virtual_dir}/net/bond0/lower_vlan7")); // round in a circle
    link("../../devices/virtual/net/bond0", "sys/class/net/bond0");
    link("../../devices/virtual/net/vlan7", "sys/class/net/vlan7");
    link("../../../../../class/block/pmem1.2", &format!("{virtual_dir}/block/dm-0/slaves/pmem1.2"));
    link("../../devices/virtual/block/dm-0", "sys/class/block/dm-0");
    assert_eq!(nodes(&root, "netdev:bond0").as_deref(), Ok("0-1"));
    assert_eq!(nodes(&root, "netdev:vlan7").as_deref(), Ok("0-1"));
    assert_eq!(nodes(&root, "block:dm-0").as_deref(), Ok("1"));
}

/// The sysfs tree of a disk on a controller that can share it with others: the namespace is below its
/// subsystem.
#[test]
fn a_disk_with_several_paths_is_where_its_controller_is() {
    let capture = Capture::unpack("32em64t-2n8c+dax+nvme+mic+dimms");
    let root = capture.root();
    let subsystem = root.join("sys/devices/virtual/nvme-subsystem/nvme-subsys7");
    let controller = root.join("sys/devices/pci0000:80/0000:80:02.2/0000:82:00.0/nvme/nvme7");
    fs::create_dir_all(subsystem.join("nvme7n1")).unwrap();
    fs::create_dir_all(&controller).unwrap();
    symlink("../../../pci0000:80/0000:80:02.2/0000:82:00.0/nvme/nvme7", subsystem.join("nvme7")).unwrap();
    symlink("../../nvme-subsys7", subsystem.join("nvme7n1/device")).unwrap();
    let class = "../../devices/virtual/nvme-subsystem/nvme-subsys7/nvme7n1";
    symlink(class, root.join("sys/class/block/nvme7n1")).unwrap();
    let way = controller.join("nvme7c0n1");
    fs::create_dir_all(&way).unwrap();
    fs::write(way.join("hidden"), "1\n").unwrap();
    symlink(&way, root.join("sys/class/block/nvme7c0n1")).unwrap();
    assert_eq!(nodes(&root, "block:nvme7n1").as_deref(), Ok("1"));
    let machine = Topology::from_root(&root).unwrap();
    let mut disks = machine.devices().iter().filter(|device| device.name.starts_with("nvme7"));
    let disk = disks.next().unwrap();
    assert_eq!((disk.name.as_str(), disks.next()), ("nvme7n1", None), "the way to it is no disk");
    assert_eq!((disk.node.unwrap().0, disk.pci_address.as_deref()), (1, Some("0000:82:00.0")));
}

#[test]
fn a_host_stands_for_the_interface_that_routes_there() {
    let capture = Capture::unpack("32em64t-2n8c+dax+nvme+mic+dimms");
    let root = capture.root();
    fs::create_dir_all(root.join("proc/net")).unwrap();
    // As Linux writes them on a little-endian machine: 192.0.2.1 is 010200C0.
    let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                  ib0\t00000000\t010200C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
                  ib0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n\
                  eth0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
                  *\t0000020A\t00000000\t0200\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
    let (v4, v6) = (root.join("proc/net/route"), root.join("proc/net/ipv6_route"));
    if cfg!(target_endian = "little") {
        fs::write(&v4, routes).unwrap();
        assert_eq!(nodes(&root, "ip:10.9.9.9").as_deref(), Ok("1"), "10.0.0.0/8 is ib0's");
        assert_eq!(nodes(&root, "ip:10.1.9.9").as_deref(), Ok("0"), "10.1.0.0/16 is eth0's");
        assert_eq!(nodes(&root, "ip:10.2.9.9").as_deref(), Ok("1"), "a route that rejects is none");
        assert_eq!(nodes(&root, "ip:198.51.100.7").as_deref(), Ok("0"), "the default of least metric");
        fs::write(&v4, "Iface\neth0\t0000\n").unwrap();
        assert_eq!(nodes(&root, "ip:198.51.100.7"), Err(ListErrorKind::Unreadable));
    }
    let zero = "0".repeat(32);
    let line = |destination: &str, prefix: u32, metric: u32, interface: &str| {
        format!(
            "{destination} {prefix:02x} {zero} 00 {zero} {metric:08x} 00000001 00000000 00000001 {interface:>8}\n"
        )
    };
    let documentation = "20010db8000000000000000000000000";
    fs::write(&v6, line(&zero, 0, 1024, "eth0") + &line(documentation, 32, 256, "ib0")).unwrap();
    assert_eq!(nodes(&root, "ip:2001:db8::7").as_deref(), Ok("1"));
    assert_eq!(nodes(&root, "ip:2001:db9::7").as_deref(), Ok("0"));
    fs::write(&v6, "").unwrap();
    assert_eq!(nodes(&root, "ip:2001:db9::7"), Err(ListErrorKind::NoSuchDevice));
    assert_eq!(nodes(&root, "ip:127.0.0.1"), Err(ListErrorKind::NodeUnknown));
    assert_eq!(nodes(&root, "ip:::1"), Err(ListErrorKind::NodeUnknown));
}

#[test]
fn node_numbers_may_have_gaps() {
    let capture = Capture::unpack("48amd64-4pa2n6c-sparse");
    let root = capture.root();
    assert_eq!(nodes(&root, "all").as_deref(), Ok("0-2,33-34,45,72-73"));
    assert_eq!(nodes(&root, "2-45").as_deref(), Ok("2,33-34,45"));
    assert_eq!(nodes(&root, "+3-5,7").as_deref(), Ok("33-34,45,73"));
    assert_eq!(nodes(&root, "!0-2,72").as_deref(), Ok("33-34,45,73"));
    assert_eq!(nodes(&root, "3"), Err(ListErrorKind::NotAllowed));
    assert_eq!(nodes(&root, "0-44"), Err(ListErrorKind::NotAllowed));
}

#[test]
fn memory_and_cpus_may_be_on_different_nodes() {
    let capture = Capture::unpack("fakememinitiators-1np2c+1npp+gi");
    let machine = Topology::from_root(&capture.root()).unwrap();
    let lists = Lists::new(&machine, Allowed::everything(&machine), &capture.root());
    assert_eq!(lists.memory_nodes("all").unwrap().to_string(), "5-10");
    assert_eq!(lists.cpu_nodes("all").unwrap().to_string(), "0-3");
    assert_eq!(lists.cpus_of_nodes("1-2").unwrap().to_string(), "2-5");
    assert_eq!(
        lists.memory_nodes("0").unwrap_err().to_string(),
        "node list '0': 0 is not allowed, only 5-10"
    );
    assert_eq!(lists.cpu_nodes("5").unwrap_err().to_string(), "node list '5': 5 is not allowed, only 0-3");
}

#[test]
fn this_machines_devices_have_nodes() {
    let machine = Topology::live().unwrap();
    let lists = Lists::live(&machine).unwrap();
    for device in machine.devices() {
        let Some(node) = device.node else { continue };
        let scheme = match device.kind {
            nodewise_topology::DeviceKind::Network => "netdev",
            nodewise_topology::DeviceKind::Block => "block",
            _ => continue,
        };
        let found = lists.memory_nodes(&format!("{scheme}:{}", device.name));
        assert_eq!(found.unwrap().to_string(), node.to_string(), "{}", device.name);
    }
    assert_eq!(lists.memory_nodes("file:/no/such/file").unwrap_err().kind(), ListErrorKind::NoSuchDevice);
    assert_eq!(lists.memory_nodes("file:/proc/self/status").unwrap_err().kind(), ListErrorKind::NoSuchDevice);
}

/// The CPUs that numactl and we let a program run on, for the same list on this machine. Two lists are left
/// out because we refuse what numactl reads in a way nobody means: `1-0` is CPU 1 to it, and `0x1` is CPU 1
/// where its manual says it is a mask.
#[test]
fn cpu_lists_are_those_of_numactl() {
    let machine = Topology::live().unwrap();
    let lists = Lists::live(&machine).unwrap();
    let texts = [
        "0", "1", "2", "0-1", "+0", "+1", "+0-1", "!0", "!1", "!0-1", "all", "+all", "!all", "0,1", "1,0",
        "0,all", "x", "0-", "-1", "+9999", "!+0", "0 1", " 0", "0,,1", "0,", ",0", "same", "+!0", "!", "+",
        "",
    ];
    for text in texts {
        let numactl = Command::new("numactl").args(["-C", text, "cat", "/proc/self/status"]).output();
        let numactl =
            numactl.unwrap_or_else(|error| panic!("numactl: {error}; `apt-get install numactl` brings it"));
        let status = String::from_utf8(numactl.stdout).unwrap();
        let theirs = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
        let ours = lists.cpus(text).map(|cpus| cpus.to_string());
        assert_eq!(ours.as_deref().ok(), theirs, "'{text}': {ours:?}");
    }
}

#[test]
fn nodes_alone_are_what_placement_takes_of_a_machine() {
    let (whole, nodes) = (Topology::live().unwrap(), Topology::live_nodes().unwrap());
    assert_eq!(nodes.online_cpus(), whole.online_cpus());
    let placement = |machine: &Topology| {
        let nodes = machine.nodes().iter();
        nodes.map(|node| (node.id, node.cpus.clone(), node.memory_total_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(placement(&nodes), placement(&whole));
    assert_eq!(Allowed::everything(&nodes), Allowed::everything(&whole));
}
