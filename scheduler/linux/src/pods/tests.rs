//! Lists of pods, and cgroups as kubelets and runtimes make them. Names of cgroups are those that were reported of real nodes:
//! systemd with Docker (kubernetes issue 62896), with CRI-O (minikube issue 11280), cgroupfs (cAdvisor pull request 2540), drivers that
//! differ (kubernetes issue 36807); ids of containers are shortened.

use super::layout::{find, of_pod, Container, Group, Qos};
use super::source::{look, Source};
use super::*;
use crate::cgroup::Version;
use crate::root::tests::tree;
use crate::root::Root;
use serde_json::json;

const UID: &str = "2ac279fe-28fa-11e8-8904-74dbd1a06fe0";
const OTHER_UID: &str = "10231429-28f6-11e8-8903-74dbd1a06fe0";
const CONTAINER: &str = "0eb2fce3f5e17f6373209d72560673456a6426bc584ff03d76c7802270bbe122";
const PAUSE: &str = "fdef805249b8a6670b3b683d596c276743043e526621aa63b2839cee4984345c";

fn pod(name: &str, annotations: &[(&str, &str)]) -> serde_json::Value {
    let said: serde_json::Map<String, serde_json::Value> = annotations.iter().map(|(k, v)| (format!("surefoot/{k}"), json!(v))).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "shop", "uid": UID, "annotations": said, "labels": { "app.kubernetes.io/name": "web" } },
        "spec": { "nodeName": "n1", "containers": [{ "name": "web" }] },
        "status": {
            "phase": "Running", "qosClass": "Burstable",
            "containerStatuses": [{ "name": "web", "containerID": format!("containerd://{CONTAINER}"), "ready": true }],
        },
    })
}

fn list(items: &[serde_json::Value]) -> String {
    json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }).to_string()
}

fn refused(annotations: &[(&str, &str)]) -> String {
    let r = read(&list(&[pod("web-0", annotations), pod("good", &[("kind", "be"), ("id", "good")])])).unwrap();
    assert_eq!(r.wanted.len(), 1, "the other pod is well: {r:?}");
    r.refused[0].to_string()
}

/// An LC pod has kind, target and a name for its models; a BE pod a kind; a pod without a word of ours is none of ours.
#[test]
fn annotations_make_services() {
    let lc = pod("web-0", &[("kind", "lc"), ("qos-target-ms", "12.5"), ("threads", "8")]);
    let be = pod("batch", &[("kind", "be"), ("service", "spark"), ("id", "night")]);
    let r = read(&list(&[lc, pod("nothing", &[]), be])).unwrap();
    assert!(r.refused.is_empty(), "{r:?}");
    let said: Vec<_> = r.wanted.iter().map(|w| (w.pod.as_str(), w.id.as_str(), w.service.as_str(), w.kind, w.threads)).collect();
    assert_eq!(
        said,
        [("shop/batch", "night", "spark", Kind::Be, None), ("shop/web-0", "web-0", "web", Kind::Lc { qos_target_ms: 12.5 }, Some(8)),]
    );
}

/// A label says it, too, and an annotation has the last word; pods that do not run are passed over.
#[test]
fn labels_count_where_no_annotation_does() {
    let mut p = pod("web-0", &[("qos-target-ms", "5")]);
    p["metadata"]["labels"] = json!({ "surefoot/kind": "lc", "surefoot/qos-target-ms": "9" });
    let mut pending = pod("late", &[("kind", "be")]);
    pending["status"]["phase"] = json!("Pending");
    let r = read(&list(&[p, pending])).unwrap();
    assert_eq!((r.wanted.len(), r.wanted[0].kind), (1, Kind::Lc { qos_target_ms: 5.0 }));
}

/// Each wrong annotation gets one word with pod, key and remedy, and no other pod goes down with it.
#[test]
fn a_wrong_annotation_takes_one_pod_out() {
    for (annotations, says) in [
        (&[("kind", "lc")][..], "pod shop/web-0: surefoot/qos-target-ms: is missing. Give the p99 target in ms"),
        (&[("kind", "lc"), ("qos-target-ms", "fast")], "surefoot/qos-target-ms: is \"fast\". Give the p99 target"),
        (&[("kind", "lc"), ("qos-target-ms", "-1")], "surefoot/qos-target-ms: is \"-1\""),
        (&[("kind", "lc"), ("qos-target-ms", "inf")], "surefoot/qos-target-ms: is \"inf\""),
        (&[("kind", "be"), ("qos-target-ms", "1")], "surefoot/qos-target-ms: a BE job has none. Remove it"),
        (&[("kind", "latency")], "surefoot/kind: is \"latency\". Write lc or be"),
        (&[("qos-target-ms", "1")], "surefoot/kind: is missing"),
        (&[("kind", "be"), ("qos-target", "1")], "surefoot/qos-target: is no annotation of Surefoot's. There are: kind, qos-target-ms"),
        (&[("kind", "be"), ("threads", "0")], "surefoot/threads: is \"0\". Give 1 to 1024"),
        (&[("kind", "be"), ("id", "a/b")], "surefoot/id: \"a/b\" is no id"),
        (&[("kind", "be"), ("container", "db")], "surefoot/container: no container \"db\" runs in it. There are: web"),
        (&[("kind", "be"), ("id", "good")], "surefoot/id: \"good\" is that of pod shop/good, too. Give one of them another"),
    ] {
        let said = refused(annotations);
        assert!(said.contains(says), "{annotations:?}: {said}");
    }
    let long = "a".repeat(41);
    let r = read(&list(&[pod(&long, &[("kind", "be")])])).unwrap();
    assert!(r.refused[0].to_string().contains("Give the pod a shorter name with surefoot/id"), "{:?}", r.refused);
}

/// A text that is no list is an error; a uid or a container id that could name another folder is refused.
#[test]
fn what_is_no_list_is_refused() {
    for text in ["", "{}", "[]", "{\"items\": 3}", "<html>", "{\"items\": [{}]}"] {
        assert!(read(text).unwrap_err().starts_with("is no list of pods: "), "{text}");
    }
    let mut p = pod("web-0", &[("kind", "be")]);
    p["metadata"]["uid"] = json!("../../system.slice");
    assert!(read(&list(&[p])).unwrap().refused[0].to_string().contains("its uid is"));
    assert_eq!(Container::parse("containerd://../../x"), None);
    assert_eq!(Container::parse("rkt://abc"), None);
}

fn group(qos: Qos, runtime: &str) -> Group {
    Group { uid: UID.into(), qos, container: Container::parse(&format!("{runtime}://{CONTAINER}")), named: false, of: 1 }
}

/// Names of pods as real kubelets make them, for both drivers, all classes, and below a --cgroup-root.
#[test]
fn names_are_the_kubelets() {
    let names = |qos, below: &str| of_pod(&group(qos, "containerd"), below);
    assert_eq!(
        names(Qos::Burstable, "/"),
        [
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2ac279fe_28fa_11e8_8904_74dbd1a06fe0.slice",
            "/kubepods/burstable/pod2ac279fe-28fa-11e8-8904-74dbd1a06fe0",
        ]
    );
    assert_eq!(
        names(Qos::Guaranteed, "/"),
        ["/kubepods.slice/kubepods-pod2ac279fe_28fa_11e8_8904_74dbd1a06fe0.slice", "/kubepods/pod2ac279fe-28fa-11e8-8904-74dbd1a06fe0"]
    );
    assert_eq!(
        names(Qos::BestEffort, "/kubelet"),
        [
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod2ac279fe_28fa_11e8_8904_74dbd1a06fe0.slice",
            "/kubelet/kubepods/besteffort/pod2ac279fe-28fa-11e8-8904-74dbd1a06fe0",
        ]
    );
    assert_eq!(names(Qos::BestEffort, "/kubelet.slice")[0], names(Qos::BestEffort, "/kubelet")[0]);
}

/// Which cgroup is set: on v2 the pod's, or the container that is named; on v1 the container's, by the name that its runtime gives it.
#[test]
fn the_cgroup_is_found() {
    let pod = |driver: usize| of_pod(&group(Qos::Burstable, "docker"), "/")[driver].clone();
    let at = |there: Vec<String>, group: &Group, version| find("shop/web-0", group, "/", version, &|n| there.iter().any(|t| t == n));
    for (runtime, driver, folder) in [
        ("docker", 0, format!("docker-{CONTAINER}.scope")),
        ("containerd", 0, format!("cri-containerd-{CONTAINER}.scope")),
        ("cri-o", 0, format!("crio-{CONTAINER}.scope")),
        ("docker", 1, CONTAINER.to_string()),
        ("containerd", 1, CONTAINER.to_string()),
        ("cri-o", 1, format!("crio-{CONTAINER}")),
    ] {
        let container = format!("{}/{folder}", pod(driver));
        let there = || vec![pod(driver), container.clone(), format!("{}/{PAUSE}", pod(driver))];
        let g = group(Qos::Burstable, runtime);
        assert_eq!(at(there(), &g, Version::V2), Ok(pod(driver)));
        assert_eq!(at(there(), &g, Version::V1), Ok(container.clone()));
        assert_eq!(at(there(), &Group { named: true, ..g }, Version::V2), Ok(container));
    }
    let g = group(Qos::Burstable, "containerd");
    let several = Group { container: None, of: 2, ..g.clone() };
    assert_eq!(at(vec![pod(0)], &several, Version::V2), Ok(pod(0)));
    let said = |r: Result<String, Refused>| r.unwrap_err().to_string();
    assert!(said(at(vec![pod(0)], &several, Version::V1)).contains("surefoot/container: is missing: the pod has 2 containers"));
    assert!(said(at(vec![], &g, Version::V2)).contains("Name the kubelet's --cgroup-root as pods.below"));
    // Drivers that differ: the name of the slice is a folder's.
    let odd = format!("/kubepods-burstable-pod2ac279fe_28fa_11e8_8904_74dbd1a06fe0.slice:cri-containerd:{CONTAINER}");
    assert!(said(at(vec![pod(0), odd], &g, Version::V1)).contains("SystemdCgroup = true"));
    assert!(said(at(vec![pod(0)], &g, Version::V1)).contains("kubectl describe pod"));
}

/// A static pod's cgroup has the uid that the kubelet made, not that of its mirror.
#[test]
fn static_pods_have_the_kubelets_uid() {
    let mut p = pod("etcd", &[("kind", "be")]);
    let own = p["metadata"]["uid"].as_str().unwrap().to_string();
    p["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!("ae7a96fb2bdc46b096e278e4af94847b");
    // Anybody can write that annotation: without a mirror's it says nothing.
    assert_eq!(read(&list(&[p.clone()])).unwrap().wanted[0].group.uid, own);
    p["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("ae7a96fb2bdc46b096e278e4af94847b");
    assert_eq!(read(&list(&[p])).unwrap().wanted[0].group.uid, "ae7a96fb2bdc46b096e278e4af94847b");
}

/// Of two pods with one id the one that runs for longer keeps it, whatever their names.
#[test]
fn a_newcomer_takes_no_id() {
    let started = |name: &str, at: &str| {
        let mut p = pod(name, &[("kind", "be"), ("id", "db")]);
        p["status"]["startTime"] = json!(at);
        p
    };
    let found = read(&list(&[started("alpha", "2026-11-29T10:00:00Z"), started("zeta", "2026-11-28T10:00:00Z")])).unwrap();
    assert!(found.wanted.len() == 1 && found.wanted[0].pod.ends_with("/zeta"), "{:?}", found.wanted);
    assert!(found.refused[0].to_string().contains("alpha"), "{}", found.refused[0]);
}

/// A host with these cgroups, and a list of its pods.
fn host(version: Version, groups: &[String], pods: &[serde_json::Value]) -> (tempfile::TempDir, Root, Source) {
    let mut files: Vec<(String, String)> = vec![];
    let mounts = match version {
        Version::V2 => "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        Version::V1 => "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n",
    };
    files.push(("/proc/self/mountinfo".into(), mountinfo(version)));
    files.push(("/proc/mounts".into(), mounts.into()));
    files.push(("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu memory\n".into()));
    for g in groups {
        match version {
            Version::V2 => files.push((format!("/sys/fs/cgroup{g}/cpuset.cpus"), "\n".into())),
            Version::V1 => {
                files.push((format!("/sys/fs/cgroup/cpu,cpuacct{g}/cpu.shares"), "2\n".into()));
                files.push((format!("/sys/fs/cgroup/cpuset{g}/cpuset.cpus"), "0-3\n".into()));
            }
        }
    }
    files.push(("/pods.json".into(), list(pods)));
    let (dir, root) = tree(&files);
    let source = Source::File(dir.path().join("pods.json"));
    (dir, root, source)
}

fn mountinfo(version: Version) -> String {
    match version {
        Version::V2 => "25 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n".into(),
        Version::V1 => "30 1 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                        31 1 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
            .into(),
    }
}

/// The trees of four nodes: both versions, both drivers. The pod that serves is found, a BE pod beside it, and the pod without a cgroup is told.
#[test]
fn trees_of_real_kubelets_are_read() {
    for version in [Version::V1, Version::V2] {
        for driver in [0, 1] {
            let mut be = pod("batch", &[("kind", "be")]);
            be["metadata"]["uid"] = json!(OTHER_UID);
            be["status"]["qosClass"] = json!("BestEffort");
            let mut gone = pod("gone", &[("kind", "be")]);
            gone["metadata"]["uid"] = json!("ae7a96fb-2bdc-46b0-96e2-78e4af94847b");
            let web = of_pod(&group(Qos::Burstable, "containerd"), "/")[driver].clone();
            let batch = of_pod(&Group { uid: OTHER_UID.into(), ..group(Qos::BestEffort, "containerd") }, "/")[driver].clone();
            let inside = |pod: &String| match driver {
                0 => format!("{pod}/cri-containerd-{CONTAINER}.scope"),
                _ => format!("{pod}/{CONTAINER}"),
            };
            let all = [&web, &batch].map(|p| [p.clone(), inside(p)]).concat();
            let lc = pod("web-0", &[("kind", "lc"), ("qos-target-ms", "10")]);
            let (_dir, root, source) = host(version, &all, &[lc, be, gone]);
            let (found, refused) = look(&source, "/", &root).unwrap();
            let at = |p: &String| if version == Version::V2 { p.clone() } else { inside(p) };
            let said: Vec<_> = found.iter().map(|f| (f.wanted.id.as_str(), f.cgroup.clone())).collect();
            assert_eq!(said, [("batch", at(&batch)), ("web-0", at(&web))], "{version:?} {driver}");
            assert_eq!(refused.len(), 1);
            assert!(refused[0].to_string().starts_with("pod shop/gone: neither "), "{refused:?}");
        }
    }
}

/// A list that is not there, or half written, is one clear word.
#[test]
fn a_list_that_cannot_be_had_is_said() {
    let (dir, root, source) = host(Version::V2, &[], &[]);
    let nowhere = Source::File(dir.path().join("none.json"));
    assert!(look(&nowhere, "/", &root).unwrap_err().contains("none.json: cannot be read: "));
    std::fs::write(dir.path().join("pods.json"), "{\"items\": [").unwrap();
    assert!(look(&source, "/", &root).unwrap_err().contains("is no list of pods: "));
}

/// In a cgroup namespace of its own a container finds no pod, and is told what to set.
#[test]
fn a_namespace_of_ones_own_is_said() {
    let (_dir, root, source) = host(Version::V2, &[], &[]);
    assert_eq!(look(&source, "/", &root), Ok((vec![], vec![])));
    let info = "25 1 0:26 /../../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    crate::root::tests::put(&root, "/proc/self/mountinfo", info);
    assert!(look(&source, "/", &root).unwrap_err().contains("privileged: true"));
}

/// Go writes null for what is empty: such a pod is as good as one without the field, and takes no other down.
#[test]
fn null_is_nothing() {
    let mut p = pod("web-0", &[("kind", "be")]);
    for field in ["labels", "namespace"] {
        p["metadata"][field] = json!(null);
    }
    p["status"]["startTime"] = json!(null);
    let mut starts = pod("starts", &[("kind", "be"), ("id", "starts")]);
    starts["status"] = json!({ "phase": "Running", "qosClass": "BestEffort", "containerStatuses": null });
    let mut bare = pod("bare", &[]);
    bare["metadata"]["annotations"] = json!(null);
    bare["status"] = json!(null);
    let r = read(&list(&[p, starts, bare])).unwrap();
    assert!(r.refused.is_empty(), "{r:?}");
    assert_eq!(r.wanted.iter().map(|w| w.id.as_str()).collect::<Vec<_>>(), ["web-0", "starts"]);
    assert_eq!(read("{\"kind\": \"PodList\", \"items\": null}"), Ok(Reading::default()));
}

/// A page of the kubelet's is read as far as a file is: a node's pods come to more than a service's page of metrics may have.
#[test]
fn a_long_answer_of_the_kubelet_is_read() {
    use std::io::{Read, Write};
    let answer = |bytes: usize, is_announced: bool| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = crate::feed::scrape::Url::parse(&format!("http://{}/pods", listener.local_addr().unwrap())).unwrap();
        let at = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let text = list(&[]);
            let fill = " ".repeat(bytes - text.len());
            // Who is sent too much hangs up.
            let length = if is_announced { format!("Content-Length: {bytes}\r\n") } else { String::new() };
            let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n{length}\r\n{text}{fill}").as_bytes());
        });
        let (_dir, root, _) = host(Version::V2, &[], &[]);
        let said = look(&Source::Page(url), "/", &root);
        at.join().unwrap();
        said
    };
    for is_announced in [false, true] {
        assert_eq!(answer(6 << 20, is_announced), Ok((vec![], vec![])));
        let long = answer(17 << 20, is_announced).unwrap_err();
        assert!(long.contains("more than 16777216 bytes. Use a file"), "{long}");
    }
}

/// A file is as old as its last writing; one of tomorrow is new, and a page has no age.
#[test]
fn a_list_has_an_age() {
    use std::time::{Duration, SystemTime};
    let (dir, _, source) = host(Version::V2, &[], &[]);
    let now = SystemTime::now();
    let written =
        |at: SystemTime| std::fs::File::options().write(true).open(dir.path().join("pods.json")).unwrap().set_modified(at).unwrap();
    written(now - Duration::from_secs(90));
    assert_eq!(source.age(now).unwrap().as_secs(), 90);
    written(now + Duration::from_secs(86_400));
    assert_eq!(source.age(now), Some(Duration::ZERO));
    assert_eq!(Source::File(dir.path().join("none")).age(now), None);
}
