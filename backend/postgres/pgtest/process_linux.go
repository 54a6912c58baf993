package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// account is the user that the servers run as.
type account struct {
	other    bool // than the user of this process
	uid, gid uint32
}

// runAs returns the user of this process. For root, which may not run PostgreSQL, it is another one.
func runAs() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return account{}, fmt.Errorf("pgtest: PostgreSQL cannot run as root, and there is neither a user postgres nor nobody: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return account{true, uint32(uid), uint32(gid)}, err
}

func (a account) prepare(cmd *exec.Cmd) {
	if a.other {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.uid, Gid: a.gid}}
	}
}

func (a account) own(file string) error {
	if !a.other {
		return nil
	}
	return os.Chown(file, int(a.uid), int(a.gid))
}

// canEnter returns an error if the user cannot reach what is in a directory.
func (a account) canEnter(dir string) error {
	for ; a.other; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		need := os.FileMode(0o001)
		switch {
		case stat.Uid == a.uid:
			need = 0o100
		case stat.Gid == a.gid:
			need = 0o010
		}
		if info.Mode().Perm()&need == 0 {
			return fmt.Errorf("the user %d cannot enter %s", a.uid, dir)
		}
		if dir == "/" {
			break
		}
	}
	return nil
}

// childrenOf returns the processes whose parent is pid, without those that have ended.
func childrenOf(pid int) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var children []int
	for _, dir := range all {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if state, parent := stateOf(child); parent == pid && !ended(state) {
			children = append(children, child)
		}
	}
	return children, nil
}

// stateOf returns the state of a process, as proc(5) has it, and its parent; 0, 0 if there is none.
func stateOf(pid int) (state byte, parent int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent
}

func ended(state byte) bool { return state == 0 || state == 'Z' || state == 'X' }

// stop stops a process and returns when it has stopped or ended.
func stop(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	for {
		state, _ := stateOf(pid)
		if ended(state) || state == 'T' {
			return nil
		}
		time.Sleep(time.Millisecond) // there is no signal for it
	}
}

// killTree kills a postmaster and its children. While the postmaster is stopped it starts no other
// children, and their process ids are not used again. When it ends, no other process of the server is
// left.
func killTree(postmaster *os.Process) {
	pid := postmaster.Pid
	_ = stop(pid) // fails only if it has ended
	for {
		children, err := childrenOf(pid)
		if err != nil || len(children) == 0 {
			break
		}
		for _, child := range children {
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond) // there is no signal for their ends
	}
	_ = postmaster.Kill()
}

// pause is a postmaster that is stopped with its children.
type pause struct {
	postmaster *os.Process
	children   []int
	guard      *exec.Cmd
	pipe       io.WriteCloser
}

// pauseTree stops a postmaster and its children. The kernel kills the postmaster when this process
// ends, but its children would stay stopped for ever. So a shell waits for the end of a pipe, and kills
// them.
func pauseTree(postmaster *os.Process) (_ *pause, err error) {
	p := &pause{postmaster: postmaster}
	if err := stop(postmaster.Pid); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.end())
		}
	}()
	if p.children, err = childrenOf(postmaster.Pid); err != nil {
		return nil, err
	}
	args := []string{"-c", `read line || kill -KILL "$@"`, "sh"}
	for _, pid := range p.children {
		args = append(args, strconv.Itoa(pid))
	}
	guard := exec.Command("/bin/sh", args...)
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal of the terminal is not for it
	if p.pipe, err = guard.StdinPipe(); err != nil {
		return nil, err
	}
	if err := guard.Start(); err != nil {
		return nil, err
	}
	p.guard = guard
	for _, pid := range p.children {
		if err := stop(pid); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// end continues the processes.
func (p *pause) end() error {
	var err error
	if p.guard != nil {
		_, err = io.WriteString(p.pipe, "resume\n")
		err = errors.Join(err, p.guard.Wait())
	}
	for _, pid := range p.children {
		// Without its parent the process id can be that of another process.
		if _, parent := stateOf(pid); parent == p.postmaster.Pid {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	_ = p.postmaster.Signal(syscall.SIGCONT) // fails only if it has ended
	return err
}

// title matches the title of a process that serves a client: "postgres: user database [local] idle", or
// an address with a port.
var title = regexp.MustCompile(`^postgres: .* (\[local\]|[^ ]+\([0-9]+\))( |$)`)

// backends returns the children of a postmaster that serve clients.
func backends(postmaster int) ([]int, error) {
	children, err := childrenOf(postmaster)
	return slices.DeleteFunc(children, func(pid int) bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		line = bytes.TrimRight(line, "\x00")
		return err != nil || !title.Match(line) || bytes.HasPrefix(line, []byte("postgres: walsender "))
	}), err
}
