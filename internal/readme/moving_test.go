package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The pages show code of other libraries, and of coord beside it, as a test of a module with those
// libraries runs it.
func TestThePagesOnMovingAndAdaptersShowWhatTestsRun(t *testing.T) {
	page, adapters := read(t, "docs/moving.md"), read(t, "docs/adapters.md")
	form := regexp.MustCompile("(?ms)^```go[^\n]*\n(.*?)^```$")
	for title, c := range map[string]struct {
		file   string
		blocks int
	}{
		"From etcd's concurrency package":                {"backend/etcd/moving_test.go", 7},
		"From client-go's leader election":               {"docs/moving/moving_test.go", 2},
		"From gocron, ShedLock, and cron under a leader": {"docs/moving/schedules/schedules_test.go", 4},
		"From locks in Redis":                            {"docs/moving/moving_test.go", 2},
		"From advisory locks in PostgreSQL":              {"backend/postgres/moving_test.go", 3},
		"From river":                                     {"docs/moving/river/river_test.go", 2},
		"errgroup":                                       {"docs/moving/adapters/adapters_test.go", 1},
		"controller-runtime":                             {"docs/moving/adapters/adapters_test.go", 1},
		"fx":                                             {"docs/moving/adapters/adapters_test.go", 2},
	} {
		_, section, _ := strings.Cut(page+adapters, "\n## "+title+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		blocks := form.FindAllStringSubmatch(section, -1)
		if len(blocks) != c.blocks {
			t.Errorf("%s: %d blocks, want %d", title, len(blocks), c.blocks)
		}
		source := read(t, c.file)
		for _, b := range blocks {
			if !strings.Contains(source, "\n\n"+b[1]+"\n") {
				t.Errorf("%s: this is not in %s:\n%s", title, c.file, b[1])
			}
		}
	}
	required := strings.Split(read(t, "docs/moving/go.mod"), "\n")
	for name, module := range map[string]string{"client-go": "k8s.io/client-go", "redsync": "github.com/go-redsync/redsync/v4", "river": "github.com/riverqueue/river"} {
		version := regexp.MustCompile("(?m)^" + name + ` (v[0-9.]+)\. `).FindStringSubmatch(page)
		if version == nil || !slices.Contains(required, "\t"+module+" "+version[1]) {
			t.Errorf("the page names the version %q of %s, which docs/moving/go.mod does not require", version, name)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
