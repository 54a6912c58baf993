//go:build !linux

package pgtest

import (
	"errors"
	"os"
	"os/exec"
)

// account is the user of this process.
type account struct{}

func runAs() (account, error) { return account{}, nil }

func (account) prepare(*exec.Cmd)     {}
func (account) own(string) error      { return nil }
func (account) canEnter(string) error { return nil }

// killTree kills a postmaster. Its children notice that, and end.
func killTree(postmaster *os.Process) { _ = postmaster.Kill() }

type pause struct{}

func pauseTree(*os.Process) (*pause, error) { return nil, errors.ErrUnsupported }
func (*pause) end() error                   { return nil }

func backends(int) ([]int, error) { return nil, errors.ErrUnsupported }
