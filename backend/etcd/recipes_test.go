package etcd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notHere are tests of what the service does not have.
var notHere = []string{
	// The number of changes of the children (Cversion), which shows that an empty directory is not a Value.
	"TestADirectoryWithDataKeepsIt", "TestADirectoryThatWasCreatedAgainWithDataKeepsIt", "TestAnEmptyValueThatHadChildrenIsTakenOverLoudly",
	// The watches that ZooKeeper fires for an Absent.
	"TestIfMissingLeavesNoNode",
	// Commits of more than 63 operations.
	"TestAckAllCostsOneCommit", "TestAcksThatArriveDuringACommitShareTheNext", "TestALostMessageOfACombinedAckIsResolved",
	// The time of the service.
	"TestStatsTellTheAgeOfTheOldestReadyItem", "TestTheClockOfAConsumerDoesNotMatter", "TestPutAfterCountsByTheClockOfTheService",
}

// onRealServers returns the tests of package coord that have a half on a real server, except those
// that need more than the contract of it. If most is not zero, it returns the first ones of each
// file, up to this number.
func onRealServers(t *testing.T, root string, most int) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := len(names)
		for _, m := range regexp.MustCompile(`(?ms)^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}`).FindAllSubmatch(text, -1) {
			body := string(m[2])
			if regexp.MustCompile(`\bon(Each|All|Revisions)\(t`).MatchString(body) && !strings.Contains(body, "zkservice.") && !strings.Contains(body, "zktest.") &&
				!slices.Contains(notHere, string(m[1])) && (most == 0 || len(names) < n+most) {
				names = append(names, string(m[1]))
			}
		}
	}
	return names
}

// TestTheRecipes runs the tests of package coord that run on a real server, on etcd: one of each
// file, or with COORD_LONG=1 all of them.
func TestTheRecipes(t *testing.T) {
	t.Parallel()
	most := 1
	if os.Getenv("COORD_LONG") != "" {
		most = 0
	}
	names := onRealServers(t, "../..", most)
	if len(names) < 20 {
		t.Fatalf("found only %q", names)
	}
	out, err := elsewhere(t, ".", []string{"COORD_LONG=", "COORD_ETCD_SERVER=" + shared.get(t)},
		"-timeout", "25m", "-run", "^("+strings.Join(names, "|")+")$", "-skip", "/^memory|//^memory")
	passed := regexp.MustCompile(`(?m)^ +--- PASS: (\w+)/(\S+/)?zookeeper `).FindAllStringSubmatch(out, -1)
	failed := regexp.MustCompile(`(?m)^ +--- FAIL: \S+/zookeeper `).FindAllString(out, -1)
	t.Logf("figure: %d tests of recipes on etcd passed, %d failed", len(passed), len(failed))
	for _, name := range names {
		if !slices.ContainsFunc(passed, func(m []string) bool { return m[1] == name }) {
			t.Errorf("%s has not passed", name)
		}
	}
	if err != nil || t.Failed() {
		t.Errorf("%v\n%s", err, tail(out))
	}
}

// tail returns what tests that failed have said.
func tail(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "=== ") && !strings.Contains(line, "--- PASS") && !strings.Contains(line, "--- SKIP") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-200):], "")
}
