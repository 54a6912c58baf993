package backend

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxRequest is the limit for the paths and data of one request in bytes, with 128 more for
// each operation. ZooKeeper's own limit is 1 MiB by default. It answers a larger request by
// dropping the connection with every call under way on it, so this smaller limit is checked
// locally.
const MaxRequest = 1_000_000

// opOverhead covers headers, an ACL entry with credentials and the number of a sequential
// node.
const opOverhead = 128

// CheckPath reports whether path can name a node: "/", or segments that each begin with "/".
// No segment is empty, "." or "..". The path is valid UTF-8. No character is a control, a
// bidirectional format character, of zero width, for private use or a noncharacter, so that a
// path looks like what it is. These rules hold on every service. A service can have more; see
// Session.CheckPath. The error is an *Error that matches ErrBadPath and names the broken rule.
func CheckPath(path string) error {
	if reason := badPath(path); reason != "" {
		return &Error{Op: "check", Path: path, Err: fmt.Errorf("%w: %s", ErrBadPath, reason)}
	}
	return nil
}

func badPath(path string) string {
	if path == "" {
		return "empty"
	}
	if path[0] != '/' {
		return "not absolute"
	}
	if path == "/" {
		return ""
	}
	start := 1 // of the segment
	for i := 1; i < len(path); i++ {
		c := path[i]
		if c >= 0x20 && c < 0x7f && c != '/' {
			continue
		}
		switch {
		case c == '/':
			if reason := badSegment(path[start:i]); reason != "" {
				return reason
			}
			start = i + 1
		case c < utf8.RuneSelf:
			return fmt.Sprintf("control character %U", c)
		default:
			r, n := utf8.DecodeRuneInString(path[i:])
			if reason := badRune(r, n); reason != "" {
				return reason
			}
			i += n - 1
		}
	}
	return badSegment(path[start:])
}

func badSegment(s string) string {
	switch s {
	case "":
		return "empty segment"
	case ".", "..":
		return "dot segment"
	}
	return ""
}

func badRune(r rune, n int) string {
	switch {
	case r == utf8.RuneError && n == 1:
		return "not UTF-8"
	case unicode.Is(unicode.Cc, r):
		return fmt.Sprintf("control character %U", r)
	case unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
		return fmt.Sprintf("invisible or bidirectional character %U", r)
	case unicode.Is(unicode.Co, r):
		return fmt.Sprintf("private-use character %U", r)
	case unicode.Is(unicode.Noncharacter_Code_Point, r):
		return fmt.Sprintf("%U is a noncharacter", r)
	}
	return ""
}

// CheckOps reports whether the operations are valid arguments of Commit: at least one, known
// kinds and modes, good paths ("/" can be neither created nor deleted, nor absent), versions of -1 or
// more, a Container alone, and no more than MaxRequest. It is called before anything is sent.
// The error is an *Error with the index of the invalid operation.
func CheckOps(ops []Op) error {
	if len(ops) == 0 {
		return &Error{Op: "commit", Index: -1, Err: fmt.Errorf("%w: the commit has no operation", ErrInvalid)}
	}
	size := 0
	for i := range ops {
		op := &ops[i]
		if err := checkOp(op, len(ops) == 1); err != nil {
			return &Error{Op: op.Kind.String(), Path: op.Path, Index: i, Err: err}
		}
		size += opOverhead + len(op.Path) + len(op.Data)
		if size > MaxRequest {
			return &Error{Op: op.Kind.String(), Path: op.Path, Index: i,
				Err: fmt.Errorf("%w: the request has at least %d bytes, limit %d", ErrTooLarge, size, MaxRequest)}
		}
	}
	return nil
}

func checkOp(op *Op, single bool) error {
	if reason := badPath(op.Path); reason != "" {
		return fmt.Errorf("%w: %s", ErrBadPath, reason)
	}
	switch op.Kind {
	case OpCreate:
		switch {
		case op.Path == "/":
			return fmt.Errorf("%w: the root cannot be created", ErrBadPath)
		case op.Mode < Persistent || op.Mode > Container:
			return fmt.Errorf("%w: unknown create mode %d", ErrInvalid, op.Mode)
		case op.Mode == Container && !single:
			return fmt.Errorf("%w: a container must be created by a commit of its own", ErrUnsupported)
		}
	case OpSetData, OpDelete, OpCheck, OpCarry:
		switch {
		case op.Version < AnyVersion:
			return fmt.Errorf("%w: version %d, want -1 or more", ErrInvalid, op.Version)
		case op.Kind == OpCarry && op.Version != AnyVersion:
			return fmt.Errorf("%w: version %d of a carry operation, want -1", ErrInvalid, op.Version)
		case op.Kind == OpDelete && op.Path == "/":
			return fmt.Errorf("%w: the root cannot be deleted", ErrBadPath)
		}
	case OpAbsent:
		if op.Path == "/" {
			return fmt.Errorf("%w: the root always exists", ErrBadPath)
		}
	default:
		return fmt.Errorf("%w: unknown operation kind %d", ErrInvalid, op.Kind)
	}
	return nil
}
