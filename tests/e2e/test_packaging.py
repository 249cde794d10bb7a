#!/usr/bin/env python3
# labels: timing
"""What an installation brings besides the program: Debian package, service, example configuration, manual page, completions,
dashboard. Whatever names an option, a command or a metric is compared with the program itself."""
import configparser
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import common
import http_server

PACKAGING = common.ROOT / "packaging"


def options():
    """Names of all options, as the program lists them for docs/configuration.md."""
    return set(re.findall(r"^\| `--([a-z0-9-]+)` \|", common.run("help", "configuration-markdown").text, re.M))


def example():
    return common.run("help", "configuration-example").text


class Described(common.Case):
    def test_example_configuration_has_every_option_and_is_valid(self):
        text = example()
        named = re.findall(r"^#([a-z0-9-]+) =", text, re.M)
        self.assertEqual(sorted(named), sorted(options() - {"config"}))
        # Every option has its explanation and its values above it.
        self.assertEqual(len(re.findall(r"^# .+\n# \(.+\)\n#[a-z0-9-]+ =", text, re.M)), len(named))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "deepinfer.conf"
            path.write_text(text)
            self.ok("--version", "--config", path)
            # The defaults, said aloud, are valid too.
            path.write_text(re.sub(r"^#([a-z0-9-]+ = .+)$", r"\1", text, flags=re.M))
            self.ok("--version", "--config", path)
            path.write_text(text + "no-such-option = 1\n")
            self.usage("--version", "--config", path, says="no-such-option")

    def test_manual_page(self):
        page = common.run("help", "manual-page").text
        plain = page.replace("\\-", "-")
        for command in re.findall(r"^  (\w+) {2,}", common.run("--help").text, re.M):
            self.assertRegex(plain, rf'(?m)^\.SS "{command} ')
        self.assertEqual(set(re.findall(r"^\\fB--([a-z0-9-]+)\\fR$", plain, re.M)), options())
        if shutil.which("man") and shutil.which("groff"):
            with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
                file.write(page)
                file.flush()
                done = subprocess.run(["man", "--warnings", "-l", file.name], capture_output=True, text=True, timeout=60,
                                      env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("NAME", done.stdout)

    def complete(self, *words):
        """What bash offers for the last of the words."""
        script = common.run("help", "completions-bash").text + f"""
COMP_WORDS=({' '.join(f"'{w}'" for w in words)})
COMP_CWORD={len(words) - 1}
_deepinfer
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
        with tempfile.TemporaryDirectory() as folder:  # empty: names of files are completions too
            done = subprocess.run(["bash", "-u"], input=script, cwd=folder, capture_output=True, text=True, timeout=30)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_completions(self):
        self.assertEqual(self.complete("deepinfer", "ser"), ["serve"])
        self.assertIn("exit-codes", self.complete("deepinfer", "help", ""))
        self.assertEqual(self.complete("deepinfer", "serve", "--api-key"), ["--api-key", "--api-key-file"])
        self.assertIn("--max-connections", self.complete("deepinfer", "serve", "--max-"))
        self.assertEqual(self.complete("deepinfer", "chat", "--max-con"), [])
        self.assertEqual(self.complete("deepinfer", "chat", "--cpu-isa", "avx"), ["avx2", "avx512"])
        self.assertEqual(self.complete("deepinfer", "cache", "li"), ["list"])
        zsh, fish = (common.run("help", f"completions-{shell}").text for shell in ("zsh", "fish"))
        self.assertTrue(zsh.startswith("#compdef deepinfer\n"))
        self.assertEqual(set(re.findall(r"^ +'--([a-z0-9-]+)\[", zsh, re.M)), options())
        self.assertEqual(set(re.findall(r"' -l ([a-z0-9-]+)", fish)), options())
        for shell, text in (("bash", common.run("help", "completions-bash").text), ("zsh", zsh), ("fish", fish)):
            if shutil.which(shell):
                done = subprocess.run([shell, "-n", "/dev/stdin"], input=text, capture_output=True, text=True, timeout=30)
                self.assertEqual((done.returncode, done.stderr), (0, ""), shell)


class Service(common.Case):
    def test_unit(self):
        unit = configparser.RawConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(PACKAGING / "deepinfer.service")
        service = dict(unit["Service"])
        for name, value in {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes", "CapabilityBoundingSet": "", "User": "deepinfer",
                            "RestrictNamespaces": "yes", "ProtectKernelModules": "yes", "KillSignal": "SIGTERM"}.items():
            self.assertEqual(service.get(name), value, name)
        program, command, *arguments = service["ExecStart"].split()
        self.assertEqual((program, command), ("/usr/bin/deepinfer", "serve"))
        self.assertLessEqual({a.removeprefix("--") for a in arguments if a.startswith("--")}, options())
        drain = int(re.search(r"^#drain-ms = (\d+)$", example(), re.M)[1])
        self.assertGreater(int(service["TimeoutStopSec"]) * 1000, drain, "systemd kills before the server has drained")
        if shutil.which("systemd-analyze"):
            done = subprocess.run(["systemd-analyze", "verify", PACKAGING / "deepinfer.service"], capture_output=True, text=True, timeout=60)
            wrong = [line for line in done.stderr.splitlines() if "deepinfer.service:" in line and not re.search(r"not executable|Command 'man|man:deepinfer", line)]
            self.assertEqual(wrong, [])

    def test_dockerfile_names_what_exists(self):
        text = (PACKAGING / "Dockerfile").read_text()
        for path in re.findall(r"\b((?:scripts|packaging)/\w+)", text):
            self.assertTrue((common.ROOT / path).is_file(), path)
        arguments = json.loads(re.search(r"^CMD (.*)$", text, re.M)[1])
        self.assertLessEqual({a.removeprefix("--") for a in arguments if a.startswith("--")}, options())

    def test_dashboard_and_alerts_name_metrics_that_exist(self):
        with http_server.Server() as server:
            exposed = server.ask("GET", "/metrics")[2].decode()
        names = set(re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? \S+$", exposed, re.M))
        dashboard = json.loads((PACKAGING / "grafana.json").read_text())
        expressions = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
        self.assertGreater(len(expressions), 30)
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        text = "\n".join(expressions) + (common.ROOT / "docs/operations.md").read_text()
        used = set(re.findall(r"\b(?:deepinfer|process|vllm)[_:]\w*_\w+", text))
        self.assertGreater(len(used), 30)
        histograms = {name.removesuffix("_count") for name in names if name.endswith("_count")}
        self.assertEqual({name for name in used if name not in names and name not in histograms}, set())


class Package(common.Case):
    def test_debian_package(self):
        build = pathlib.Path(common.BINARY).parent
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([PACKAGING / "deb", build, folder], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            package = done.stdout.strip()
            field = lambda name: subprocess.run(["dpkg-deb", "-f", package, name], capture_output=True, text=True, check=True).stdout.strip()
            self.assertEqual(field("Package"), "deepinfer")
            version = common.run("--version").text.split()[1]
            self.assertEqual(field("Version"), version)
            for library in ("libc6", "libssl3", "libpcre2-8-0", "libutf8proc2", "libxxhash0", "libedit2"):
                self.assertRegex(field("Depends"), rf"\b{re.escape(library)} \(>= [0-9]")
            self.assertEqual(subprocess.run(["dpkg-deb", "-I", package, "conffiles"], capture_output=True, text=True, check=True).stdout.split(),
                             ["/etc/deepinfer/deepinfer.conf", "/etc/deepinfer/keys"])
            listing = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
            for file in ("keys", "deepinfer.conf"):
                self.assertRegex(listing, rf"-rw-r----- root/root .* \./etc/deepinfer/{file}")
            self.assertNotRegex(listing, r"(?m)^\S+ (?!root/root)")
            root = pathlib.Path(folder) / "root"
            subprocess.run(["dpkg-deb", "-x", package, root], check=True, timeout=120)
            for path in ("lib/systemd/system/deepinfer.service", "usr/share/man/man1/deepinfer.1.gz", "usr/share/doc/deepinfer/copyright",
                         "usr/share/bash-completion/completions/deepinfer", "usr/include/deepinfer.h", "usr/lib/sysusers.d/deepinfer.conf"):
                self.assertTrue((root / path).is_file(), path)
            program, config = root / "usr/bin/deepinfer", root / "etc/deepinfer/deepinfer.conf"
            run = lambda *arguments: subprocess.run([program, *arguments], capture_output=True, text=True, cwd=folder, env=common.environment(), timeout=120)
            done = run("--version", "--config", config)
            self.assertEqual((done.returncode, done.stdout.split()[:2]), (0, ["deepinfer", version]), done.stderr)
            self.assertIn("\ncache-dir = /var/cache/deepinfer\n", config.read_text())
            # The embedded model is found where the package put it.
            done = run("generate", "--prompt", "Hello", "--temperature", "0", "--max-tokens", "4")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.strip())
            for script in ("postinst", "prerm", "postrm"):
                self.assertEqual(subprocess.run(["sh", "-n", PACKAGING / "debian" / script]).returncode, 0)
            if shutil.which("lintian"):
                done = subprocess.run(["lintian", "--fail-on", "error", package], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    common.main()
