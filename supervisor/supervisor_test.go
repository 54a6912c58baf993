//go:build linux

package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/supervise"
	"github.com/go-coord/coord/supervisor"
)

func inode(t *testing.T, f *os.File) (fd, ino uint64) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return uint64(f.Fd()), st.Ino
}

// A variable that was inherited without its descriptor leads to no other one: a report would be written into it.
func TestFromEnv_TakesNothingButTheSocketOfTheSupervisor(t *testing.T) {
	pair, err := supervise.NewPair(true)
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Ours.Close()
	defer pair.Theirs.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	streams, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	stream, other := os.NewFile(uintptr(streams[0]), ""), os.NewFile(uintptr(streams[1]), "")
	defer stream.Close()
	defer other.Close()
	fd, ino := inode(t, pair.Theirs)
	fileFD, fileIno := inode(t, file)
	streamFD, streamIno := inode(t, stream)
	for _, value := range []string{
		"", "fd", "fd:", "unix", "unix:", "3", "tcp:1:2", "fd:x:y", fmt.Sprint("fd:", fd), "fd:-1:0", "fd:99999999999:1",
		fmt.Sprintf("fd:%d:%d", fd, ino+1),
		fmt.Sprintf("fd:%d:%d", fileFD, ino),
		fmt.Sprintf("fd:%d:%d", fileFD, fileIno),
		fmt.Sprintf("fd:%d:%d", streamFD, streamIno),
		fmt.Sprintf("fd:999:%d", ino),
	} {
		t.Setenv(supervise.Env, value)
		if r := supervisor.FromEnv(); r != nil {
			t.Errorf("%q: a reporter", value)
		}
		if _, there := os.LookupEnv(supervise.Env); there {
			t.Errorf("%q is still in the environment", value)
		}
	}
	t.Setenv(supervise.Env, pair.Env)
	if err := pair.Inherit(true); err != nil {
		t.Fatal(err)
	}
	if supervisor.FromEnv() == nil {
		t.Fatal("no reporter")
	}
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
	if errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
		t.Errorf("flags %x, %v: other processes inherit the socket", flags, errno)
	}
	if supervisor.FromEnv() != nil {
		t.Error("taken twice")
	}
}

// A supervisor that reads nothing, or has ended, blocks nothing.
func TestReporter_NeverBlocks(t *testing.T) {
	for name, gone := range map[string]bool{"it is stopped": false, "it has ended": true} {
		t.Run(name, func(t *testing.T) {
			pair, err := supervise.NewPair(true)
			if err != nil {
				t.Fatal(err)
			}
			defer pair.Theirs.Close()
			t.Setenv(supervise.Env, pair.Env)
			r := supervisor.FromEnv()
			if gone {
				pair.Ours.Close()
			} else {
				defer pair.Ours.Close()
			}
			for i := range int64(2000) {
				r.Opened(backend.Ticket{Service: "test", ID: i})
				if i%2 == 0 {
					r.Ended("test", i)
				}
			}
		})
	}
	t.Setenv(supervise.Env, "unix:"+filepath.Join(t.TempDir(), "none"))
	r := supervisor.FromEnv()
	r.Opened(backend.Ticket{Service: "test", ID: 1})
	r.Ended("test", 1)
}

// Reports that did not fit are sent later, those of the latest 64 sessions that have not ended.
func TestReporter_SendsWhatDidNotFitLater(t *testing.T) {
	pair, err := supervise.NewPair(true)
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Theirs.Close()
	defer pair.Ours.Close()
	t.Setenv(supervise.Env, pair.Env)
	r := supervisor.FromEnv()
	for i := range int64(5000) {
		r.Opened(backend.Ticket{Service: "test", ID: i})
	}
	have := make(map[int64]bool)
	read := func() (n int) {
		raw, err := pair.Ours.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, supervise.MaxMessage)
		for {
			size := 0
			raw.Control(func(fd uintptr) { size, _, err = syscall.Recvfrom(int(fd), buf, syscall.MSG_DONTWAIT) })
			if err != nil {
				return n
			}
			n++
			kind, ticket, err := supervise.Decode(buf[:size])
			if err != nil {
				t.Fatal(err)
			}
			have[ticket.ID] = kind == supervise.Opened
			if kind == supervise.Ended {
				delete(have, ticket.ID)
			}
		}
	}
	if n := read(); n > 4000 {
		t.Fatalf("the socket has room for %d messages", n)
	}
	r.Opened(backend.Ticket{Service: "test", ID: 5000})
	read()
	for i := int64(5001 - supervise.Most); i <= 5000; i++ {
		if !have[i] {
			t.Errorf("session %d was not reported", i)
		}
	}
}

// A program that logs its options must not log passwords.
func TestFromEnv_TheReporterFormatsWithoutPasswords(t *testing.T) {
	t.Setenv(supervise.Env, "unix:"+filepath.Join(t.TempDir(), "none"))
	r := supervisor.FromEnv()
	r.Opened(backend.Ticket{Service: "zookeeper", ID: 1, Password: []byte("secret"), Timeout: time.Second, Server: "a:1"})
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		if got := fmt.Sprintf(verb, r); got != "reporter to the supervisor" {
			t.Errorf("%s: %s", verb, got)
		}
	}
}
