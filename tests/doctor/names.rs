//! What a container may be called, and the output.

use super::site::Site;

#[test]
fn a_container_is_examined_by_each_of_its_names() {
    let site = Site::with_bridge("10.180.2.0/24");
    let container = site.attached("pods");
    let name = container.netns.rsplit('/').next().unwrap();
    for subject in [name, &container.netns, "cnitool-"] {
        let output = site.run(&format!("doctor {subject}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains("ok") && line.contains("10.180.2.2/24"), "{text}");
        assert!(text.ends_with("no findings\n"), "{text}");
    }
}

#[test]
fn a_namespace_without_an_attachment_is_a_finding() {
    let site = Site::with_bridge("10.180.3.0/24");
    let container = site.lab.container();
    let findings = site.findings(&container.netns);
    assert_eq!(findings[0]["code"], "D180", "{findings:?}");
    site.fix(&findings[0]);
    assert_eq!(site.codes(&container.netns), [""; 0]);
}

#[test]
fn an_unknown_name_is_a_wrong_argument() {
    let site = Site::with_bridge("10.180.4.0/24");
    let container = site.attached("pods");
    let output = site.run("doctor nowhere");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{stderr}");
    let name = container.netns.rsplit('/').next().unwrap();
    assert!(stderr.contains("\"nowhere\"") && stderr.contains(name), "{stderr}");
}

#[test]
fn records_that_cannot_be_read_are_findings() {
    let site = Site::with_bridge("10.180.5.0/24");
    let _container = site.attached("pods");
    site.finds_and_fixes("echo '{' >/var/lib/cni/results/other-torn-eth0", "D181");
    let finding = site
        .finds("cd /var/lib/cni/results; sed -i 's/\"result\":/\"was\":/' pods-cnitool-*", "D182");
    assert_eq!(finding["scope"], "attachment");
}

#[test]
fn a_fact_that_cannot_be_read_is_a_finding() {
    let site = Site::with_bridge("10.180.20.0/24");
    let finding = site.finds("touch /var/lib/cni/results", "D201");
    assert!(finding["evidence"].as_str().unwrap().contains("/var/lib/cni/results"), "{finding}");
}

#[test]
fn a_plugin_that_only_we_can_run_is_a_finding() {
    let site = Site::with_bridge("10.180.21.0/24");
    site.lab.host.sh("mkdir /run/bin");
    let site = Site { plugin_path: "/run/bin".to_owned(), ..site };
    let findings = site.findings("");
    let found: Vec<_> = findings.iter().filter(|it| it["code"] == "not-on-path").collect();
    let [finding] = found[..] else { panic!("one command installs both plugins: {findings:?}") };
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.ends_with("; so for 1 more of its plugins"), "{evidence}");
    site.fix(finding);
    assert_eq!(site.codes(""), [""; 0]);
}

/// A person may complete what the command takes.
#[test]
fn names_of_containers_are_completed() {
    let site = Site::with_bridge("10.180.25.0/24");
    let container = site.attached("pods");
    let name = container.netns.rsplit('/').next().unwrap();
    let output = site.run("complete -- cni-multi doctor ''");
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.lines().collect();
    assert!(words.contains(&name), "{text}");
    assert!(words.iter().any(|word| word.starts_with("cnitool-")), "{text}");
}
