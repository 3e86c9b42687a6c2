//! A writer of `perf.data`: files whose truth is known.
//!
//! Records as in `include/uapi/linux/perf_event.h`, sections as in
//! `tools/perf/Documentation/perf.data-file-format.txt` of Linux 6.12.

/// Bits of `PERF_SAMPLE_*`.
pub mod part {
    pub const IP: u64 = 1;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const TRANSACTION: u64 = 1 << 17;
    pub const REGS_INTR: u64 = 1 << 18;
    pub const PHYS_ADDR: u64 = 1 << 19;
    pub const AUX: u64 = 1 << 20;
    pub const CGROUP: u64 = 1 << 21;
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    pub const CODE_PAGE_SIZE: u64 = 1 << 23;
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
    /// Each of them alone.
    pub const ALL: [u64; 25] = [
        IP,
        TID,
        TIME,
        ADDR,
        READ,
        CALLCHAIN,
        ID,
        CPU,
        PERIOD,
        STREAM_ID,
        RAW,
        BRANCH_STACK,
        REGS_USER,
        STACK_USER,
        WEIGHT,
        DATA_SRC,
        IDENTIFIER,
        TRANSACTION,
        REGS_INTR,
        PHYS_ADDR,
        AUX,
        CGROUP,
        DATA_PAGE_SIZE,
        CODE_PAGE_SIZE,
        WEIGHT_STRUCT,
    ];
    /// The parts of `perf mem record --phys-data --data-page-size --sample-cpu`.
    pub const MEM: u64 = IDENTIFIER
        | IP
        | TID
        | TIME
        | ADDR
        | CPU
        | PERIOD
        | WEIGHT_STRUCT
        | DATA_SRC
        | PHYS_ADDR
        | DATA_PAGE_SIZE;
}

/// `PERF_MEM_*`, as Skylake and later write them.
pub mod source {
    const LOAD: u64 = 0x02;
    const STORE: u64 = 0x04;
    const HIT: u64 = 0x02 << 5;
    const REMOTE: u64 = 1 << 37;
    const RAM: u64 = 0xd << 33;
    const ANY_CACHE: u64 = 0xb << 33;
    const HITM: u64 = 0x10 << 19;
    pub const LOCAL_CACHE: u64 = LOAD | HIT | 0x08 << 5 | 1 << 33;
    pub const LOCAL_DRAM: u64 = LOAD | HIT | 0x80 << 5 | RAM;
    pub const REMOTE_DRAM: u64 = LOAD | HIT | 0x100 << 5 | RAM | REMOTE;
    pub const REMOTE_HITM: u64 = LOAD | HIT | ANY_CACHE | REMOTE | HITM;
    /// A store that missed the first cache: nothing is known of where the line came from.
    pub const STORE_MISS: u64 = STORE | 0x04 << 5 | 0x08 << 5;
    pub const UNKNOWN: u64 = 0;
}

/// Numbers of PMUs.
pub const SOFTWARE: u32 = 1;
pub const RAW_PMU: u32 = 4;
pub const PAGE_FAULTS: u64 = 2;

const BLOCK_BYTES: u64 = 128 << 20;

/// An event: PMU, number of the event, and the parts of its samples.
#[derive(Clone, Copy)]
pub struct Event {
    pub pmu: u32,
    pub config: u64,
    pub parts: u64,
}

pub const MEM_LOADS: Event = Event { pmu: RAW_PMU, config: 0x1cd, parts: part::MEM };

/// Everything that a sample may tell.
#[derive(Clone, Default)]
pub struct Sample {
    pub ip: u64,
    pub pid: u32,
    pub tid: u32,
    pub time: u64,
    pub address: u64,
    pub cpu: u32,
    pub period: u64,
    pub callers: Vec<u64>,
    pub latency: u32,
    pub source: u64,
    pub physical: u64,
    pub page_bytes: u64,
    /// `PERF_RECORD_MISC_*`: 2 for user code, and 0 here for that as well.
    pub mode: u16,
}

/// A file that grows.
#[derive(Clone)]
pub struct Made {
    pub events: Vec<Event>,
    pub records: Vec<u8>,
    pub features: Vec<(u32, Vec<u8>)>,
}

impl Made {
    /// The recording of a machine whose nodes have so many CPUs each, and a GiB of memory each, in the order
    /// of nodes from 0.
    pub fn of(events: &[Event], nodes: u32, cpus: u32) -> Self {
        let mut made = Self { events: events.to_vec(), records: Vec::new(), features: Vec::new() };
        let mut numa = nodes.to_le_bytes().to_vec();
        let mut blocks: Vec<u8> = words(&[1, BLOCK_BYTES, nodes.into()]);
        for node in 0..nodes {
            numa.extend(node.to_le_bytes());
            numa.extend(words(&[1 << 20, 1 << 19]));
            numa.extend(text(&format!("{}-{}", node * cpus, (node + 1) * cpus - 1)));
            let bits = u64::from(nodes) * 8;
            blocks.extend(words(&[node.into(), bits, bits]));
            let mut of_node = vec![0_u8; bits.div_ceil(64) as usize * 8];
            of_node[node as usize] = 0xff;
            blocks.extend(of_node);
        }
        let command = ["perf", "mem", "record", "./solver"];
        let mut line = (command.len() as u32).to_le_bytes().to_vec();
        line.extend(command.iter().flat_map(|word| text(word)));
        made.features =
            vec![(3, text("host")), (6, text(std::env::consts::ARCH)), (11, line), (14, numa), (22, blocks)];
        made
    }

    /// A byte of a node's physical memory.
    pub fn physical(node: u64, offset: u64) -> u64 {
        (node << 30) + offset
    }

    /// Puts a feature in the place of the one that is there.
    pub fn feature(&mut self, number: u32, bytes: Vec<u8>) {
        self.features.retain(|(other, _)| *other != number);
        self.features.push((number, bytes));
        self.features.sort();
    }

    pub fn without_feature(&mut self, number: u32) {
        self.features.retain(|(other, _)| *other != number);
    }

    pub fn sample(&mut self, event: usize, sample: &Sample) {
        let bytes = body(event_id(event), self.events[event].parts, sample);
        self.record(9, if sample.mode == 0 { 2 } else { sample.mode }, &bytes);
    }

    /// `PERF_RECORD_MMAP2`
    pub fn map(&mut self, pid: u32, time: u64, start: u64, bytes: u64, name: &str) {
        const MMAP_DATA: u16 = 1 << 13;
        let is_code = name.contains(".so") || name.starts_with("/bin/");
        let mut body = [pid.to_le_bytes(), pid.to_le_bytes()].concat();
        body.extend(words(&[start, bytes, 0, 8, 15, 0]));
        body.extend([3_u32.to_le_bytes(), 2_u32.to_le_bytes()].concat());
        body.extend(padded(name));
        self.told(10, 2 | if is_code { 0 } else { MMAP_DATA }, body, pid, time);
    }

    /// `PERF_RECORD_COMM` by an exec.
    pub fn exec(&mut self, pid: u32, time: u64, name: &str) {
        let body = [pid.to_le_bytes().to_vec(), pid.to_le_bytes().to_vec(), padded(name)].concat();
        self.told(3, 1 << 13, body, pid, time);
    }

    /// `PERF_RECORD_FORK` of a process.
    pub fn fork(&mut self, parent: u32, child: u32, time: u64) {
        let mut body: Vec<u8> = [child, parent, child, parent].iter().flat_map(|n| n.to_le_bytes()).collect();
        body.extend(words(&[time]));
        self.told(7, 0, body, child, time);
    }

    /// A record other than a sample, which ends with its identity.
    pub fn told(&mut self, kind: u32, misc: u16, mut body: Vec<u8>, pid: u32, time: u64) {
        let (parts, id) = (self.events[0].parts, event_id(0));
        for (has, word) in [
            (part::TID, u64::from(pid) << 32 | u64::from(pid)),
            (part::TIME, time),
            (part::ID, id),
            (part::STREAM_ID, 77),
            (part::CPU, 0),
            (part::IDENTIFIER, id),
        ] {
            if parts & has != 0 {
                body.extend(words(&[word]));
            }
        }
        self.record(kind, misc, &body);
    }

    pub fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
        self.records.extend(record(kind, misc, body));
    }

    /// The file, with all sections in their places.
    pub fn bytes(&self) -> Vec<u8> {
        const HEAD: u64 = 104;
        let ids = HEAD;
        let attrs = ids + 8 * self.events.len() as u64;
        let each = attr(&self.events[0]).len() as u64 + 16;
        let data = attrs + each * self.events.len() as u64;
        let mut bits = [0_u64; 4];
        self.features.iter().for_each(|(number, _)| bits[*number as usize / 64] |= 1 << (number % 64));
        let mut file = b"PERFILE2".to_vec();
        let lists = [attrs, each * self.events.len() as u64, data, self.records.len() as u64, 0, 0];
        file.extend(words(&[&[HEAD, each][..], &lists, &bits].concat()));
        (0..self.events.len()).for_each(|event| file.extend(words(&[event_id(event)])));
        for (number, event) in self.events.iter().enumerate() {
            file.extend(attr(event));
            file.extend(words(&[ids + 8 * number as u64, 8]));
        }
        file.extend(&self.records);
        let mut at = file.len() as u64 + 16 * self.features.len() as u64;
        for (_, bytes) in &self.features {
            file.extend(words(&[at, bytes.len() as u64]));
            at += bytes.len() as u64;
        }
        self.features.iter().for_each(|(_, bytes)| file.extend(bytes));
        file
    }

    /// The same as a pipe has it.
    pub fn piped(&self) -> Vec<u8> {
        let mut file = b"PERFILE2".to_vec();
        file.extend(words(&[16]));
        for (number, event) in self.events.iter().enumerate() {
            file.extend(record(64, 0, &[attr(event), words(&[event_id(number)])].concat()));
        }
        for (number, bytes) in &self.features {
            file.extend(record(80, 0, &[words(&[(*number).into()]), bytes.clone()].concat()));
        }
        file.extend(&self.records);
        file
    }
}

fn event_id(event: usize) -> u64 {
    700 + event as u64
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend(u16::try_from(body.len() + 8).unwrap().to_le_bytes());
    bytes.extend(body);
    bytes
}

/// `struct perf_event_attr` of 128 bytes.
fn attr(event: &Event) -> Vec<u8> {
    const SAMPLE_ID_ALL: u64 = 1 << 18;
    let mut bytes = [event.pmu.to_le_bytes(), 128_u32.to_le_bytes()].concat();
    // Event, period, parts, format of READ, flags.
    bytes.extend(words(&[event.config, 1000, event.parts, 0x1f, SAMPLE_ID_ALL]));
    bytes.extend([0; 24]);
    // Branches with an index and counters; two registers of user code, and one at the interrupt.
    bytes.extend(words(&[1 << 17 | 1 << 19, 0b101, 0, 0b1]));
    bytes.resize(128, 0);
    bytes
}

fn body(id: u64, parts: u64, sample: &Sample) -> Vec<u8> {
    let two = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let mut body = Vec::new();
    let mut put = |has: u64, part: &[u64]| {
        if parts & has != 0 {
            body.extend(words(part));
        }
    };
    put(part::IDENTIFIER, &[id]);
    put(part::IP, &[sample.ip]);
    put(part::TID, &[two(sample.pid, sample.tid)]);
    put(part::TIME, &[sample.time]);
    put(part::ADDR, &[sample.address]);
    put(part::ID, &[id]);
    put(part::STREAM_ID, &[78]);
    put(part::CPU, &[two(sample.cpu, 0)]);
    put(part::PERIOD, &[sample.period]);
    // A group of two: count, times enabled and running, then value, id and lost of each.
    put(part::READ, &[2, 0, 0, 1, 2, 3, 4, 5, 6]);
    let callers = [&[sample.callers.len() as u64 + 1, -512_i64 as u64][..], &sample.callers].concat();
    put(part::CALLCHAIN, &callers);
    put(part::RAW, &[two(12, 1), 2]);
    put(part::BRANCH_STACK, &[1, 0, 7, 8, 9, 10]);
    put(part::REGS_USER, &[2, 1, 2]);
    put(part::STACK_USER, &[8, 99, 8]);
    put(part::WEIGHT, &[sample.latency.into()]);
    put(part::WEIGHT_STRUCT, &[two(sample.latency, 0x0022_0011)]);
    put(part::DATA_SRC, &[sample.source]);
    put(part::TRANSACTION, &[79]);
    put(part::REGS_INTR, &[2, 3]);
    put(part::PHYS_ADDR, &[sample.physical]);
    put(part::CGROUP, &[80]);
    put(part::DATA_PAGE_SIZE, &[sample.page_bytes]);
    put(part::CODE_PAGE_SIZE, &[4096]);
    put(part::AUX, &[0]);
    body
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `do_write_string`: the length with its padding to 64 bytes, and the bytes.
pub fn text(text: &str) -> Vec<u8> {
    let bytes = (text.len() + 1).next_multiple_of(64);
    let mut all = (bytes as u32).to_le_bytes().to_vec();
    all.extend(text.as_bytes());
    all.resize(4 + bytes, 0);
    all
}

fn padded(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((text.len() + 1).next_multiple_of(8), 0);
    bytes
}
