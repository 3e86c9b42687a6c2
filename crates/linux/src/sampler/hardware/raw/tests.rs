//! Recordings, decoded as the sampler would.

use super::super::data_source::Decoded;
use super::super::detect::tests::{neoverse_n2, sapphire_rapids, tree};
use super::super::stream::Reader;
use super::*;
use nodewise_engine::DataSource;
use nodewise_sys::perf::{SampleFormat, ring_in_memory};

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

/// The accesses of each stretch. Panics where the recording is not as the kernel writes records.
fn replay(recording: &Recording) -> Vec<Vec<Decoded>> {
    let files: Vec<(&str, &str)> =
        recording.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let pmu = Pmu::detect(tree(&files).path()).unwrap();
    let format = SampleFormat::from(&pmu.events()[0].attr);
    let replayed = recording.stretches.iter().map(|stretch| {
        let records: Vec<Vec<u8>> = stretch.records.iter().map(|record| bytes(record)).collect();
        let aux = bytes(&stretch.aux);
        let largest = records.iter().map(Vec::len).sum::<usize>().max(aux.len()).max(8);
        let (mut writer, ring) = ring_in_memory(largest.next_power_of_two(), format);
        assert!(writer.write_aux(&aux) && records.iter().all(|record| writer.write(record)));
        let (mut reader, mut accesses) = (Reader::new(ring), Vec::new());
        reader.drain(&pmu, 0, |_, decoded| accesses.push(decoded));
        assert_eq!(reader.losses().malformed, 0);
        accesses
    });
    replayed.collect()
}

/// Whether what the PMU says of an access is true, as far as it says something.
fn is_true(stretch: &Stretch, decoded: &Decoded) -> bool {
    let is_local = stretch.accessor == stretch.home;
    match decoded.source {
        _ if !(stretch.address..stretch.address + stretch.bytes).contains(&decoded.address) => true,
        DataSource::LocalDram => is_local,
        DataSource::RemoteDram { .. } => !is_local,
        _ => true,
    }
}

#[test]
fn samples_of_the_kernel_and_of_guests_are_not_recorded() {
    let record = |kind: u32, misc: u16| {
        [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &16_u16.to_ne_bytes(), &[0; 8]].concat()
    };
    let (sample, lost) = (9, 2);
    let kept: Vec<u16> = (0..8).filter(|&mode| is_ours(&record(sample, mode))).collect();
    assert_eq!(kept, [2]);
    assert!(is_ours(&record(sample, 0x4002)), "other bits say other things");
    assert!(is_ours(&record(lost, 1)) && !is_ours(&[9, 0]));
}

/// Recordings that were sent in, and one that is made up.
#[test]
fn recordings_tell_the_truth() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/record-raw");
    let mut recordings = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let recording: Recording = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut told = 0;
        for (stretch, accesses) in recording.stretches.iter().zip(replay(&recording)) {
            let inside = |decoded: &&Decoded| decoded.address.wrapping_sub(stretch.address) < stretch.bytes;
            assert!(accesses.iter().any(|decoded| inside(&decoded)), "{}: no access", path.display());
            for decoded in &accesses {
                assert!(is_true(stretch, decoded), "{}: {decoded:?}", path.display());
                told += usize::from(decoded.source != DataSource::Unknown);
            }
        }
        assert!(told > 0, "{}: no source", path.display());
        recordings += 1;
    }
    assert!(recordings > 0);
}

#[test]
fn the_files_of_a_recording_are_enough_to_find_the_pmu() {
    for root in [sapphire_rapids(), neoverse_n2()] {
        let files = files_below(root.path());
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        assert_eq!(Pmu::detect(tree(&files).path()).unwrap(), Pmu::detect(root.path()).unwrap());
    }
}

#[test]
fn cpuinfo_is_recorded_without_what_is_not_needed() {
    let text =
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nSerial\t: 4711\n\nprocessor\t: 1\n";
    let files = files_below(tree(&[("proc/cpuinfo", text)]).path());
    assert_eq!(files["proc/cpuinfo"], "vendor_id\t: GenuineIntel\nmodel\t\t: 143\n");
}

/// The kernel's page-fault event stands for a PMU here: its records are as raw.
#[test]
fn records_are_taken_as_they_are() {
    use super::super::pebs::Pebs;
    use super::super::sampled::{Periods, Sampled};
    use nodewise_sys::perf::{Attr, Record, SampleType, SoftwareEvent};
    let mut attr = Attr::software(SoftwareEvent::PageFaults);
    attr.sample_type = SampleType::TID | SampleType::ADDR;
    let periods = Periods { accurate: 1, cheap: 1 };
    let events = vec![Sampled { what: "faults", leader: None, attr, periods }];
    let pmu = Pmu::Pebs(Pebs { events, is_virtual: false });
    let memory = Mapping::new(64 << 12, MappingOptions::default()).unwrap();
    let (records, aux) = sampled(&pmu, &memory, 10_000).unwrap();
    assert!(aux.is_empty());
    let format = SampleFormat::from(&attr);
    let inside = records.iter().filter(|record| match Record::parse(record, &format) {
        Ok(Record::Sample(sample)) => sample.address.is_some_and(|address| {
            (memory.address()..memory.address() + memory.bytes() as u64).contains(&address)
        }),
        _ => false,
    });
    assert!(inside.count() > 0);
    assert_eq!(bytes(&hex(&records[0])), records[0]);
}
