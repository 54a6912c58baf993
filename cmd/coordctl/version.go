package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what is known of this binary.
type build struct {
	Version string `json:"version"` // of the module
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Commit  string `json:"commit,omitempty"`
}

func thisBuild() build {
	b := build{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = s.Value
			}
		}
	}
	return b
}

func version() string {
	b := thisBuild()
	text := fmt.Sprintf("coordctl %s %s %s/%s", b.Version, b.Go, b.OS, b.Arch)
	if b.Commit != "" {
		text += " commit " + b.Commit
	}
	return text
}

// versionCommand returns the verb version.
func (t *tool) versionCommand() *cobra.Command {
	return t.command(verb{
		name: "version", short: "print the version",
		exits: []int{},
		local: func(*cobra.Command) error {
			if t.json {
				return json.NewEncoder(t.stdout).Encode(thisBuild())
			}
			_, err := fmt.Fprintln(t.stdout, version())
			return err
		},
	})
}
