// Release prepares the modules of this repository for a version; docs/releasing.md describes
// the steps around it. Run it in the root of the repository:
//
//	go run ./internal/release v1.2.3
//
// A module beside the root is built here with the modules of the checkout, by replace
// directives or by go.work. These do not apply to users, who get the versions that the module
// requires. So Release sets them to the version that is about to be tagged.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

const root = "github.com/go-coord/coord"

// released are the folders of the modules that are tagged with the root. The modules bench and
// examples are programs to be run from a checkout.
var released = []string{"backend/etcd", "backend/postgres", "cmd/coordctl", "fence", "gocronlock", "grpcresolver", "oteltrace"}

// A version from v2 on would need another module path.
var canonical = regexp.MustCompile(`^v[01]\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.]+)?$`)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./internal/release v1.2.3")
		os.Exit(2)
	}
	if err := prepare(".", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// prepare makes the released modules of the checkout require this version of each other.
func prepare(checkout, version string) error {
	if !canonical.MatchString(version) {
		return fmt.Errorf("%q is not a version of %s: want v1.2.3, or v1.2.3-rc.1", version, root)
	}
	for _, folder := range released {
		args := []string{"mod", "edit", "-require=" + root + "@" + version}
		switch folder {
		case "cmd/coordctl":
			args = append(args, "-require="+root+"/backend/etcd@"+version, "-require="+root+"/backend/postgres@"+version)
		case "fence": // its tests
			args = append(args, "-require="+root+"/backend/postgres@"+version)
		}
		cmd := exec.Command("go", args...)
		cmd.Dir = filepath.Join(checkout, folder)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", folder, err, out)
		}
	}
	return nil
}
