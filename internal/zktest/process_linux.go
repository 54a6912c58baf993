package zktest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// stopped reports whether every thread of a process is in the state T, the field after the
// name of the command in proc(5). A process that has ended counts as stopped.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false
	}
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		_, rest, ok := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if !ok || rest[0] != 'T' {
			return false
		}
	}
	return true
}
