package zookeeper

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-zookeeper/zk"
)

// verdict is the meaning of an error of the zk client.
type verdict int8

const (
	refused   verdict = iota + 1 // by the server, or before anything was sent; final
	broken                       // contact broke, or the reply is not an answer; the request may have been applied
	expired                      // by the server, because the session has ended
	throttled                    // by an overloaded server that has not run it; send it again later
)

// judge returns the verdict on an error of the zk client and, for a refusal, the error to
// report. Only a code that servers return before they apply anything is a refusal.
func judge(err error) (verdict, error) {
	switch err {
	case zk.ErrNoNode:
		return refused, backend.ErrNotFound
	case zk.ErrNodeExists:
		return refused, backend.ErrExists
	case zk.ErrBadVersion:
		return refused, backend.ErrBadVersion
	case zk.ErrNotEmpty:
		return refused, backend.ErrNotEmpty
	case zk.ErrNoChildrenForEphemerals:
		return refused, backend.ErrNoChildren
	case zk.ErrNoAuth, zk.ErrAuthFailed:
		return refused, backend.ErrDenied
	case zk.ErrInvalidACL:
		return refused, invalid("the server rejects the ACL")
	case zk.ErrBadArguments:
		return refused, invalid("the server rejects the arguments")
	case zk.ErrInvalidPath:
		return refused, backend.ErrBadPath
	case zk.ErrSessionExpired:
		return expired, nil
	}
	switch code, _ := codeOf(err); code {
	case codeUnknownSession:
		return expired, nil
	case codeThrottled:
		return throttled, nil
	case -6, -120: // unimplemented, ephemeral on a local session
		return refused, fmt.Errorf("%w: %s", backend.ErrUnsupported, err)
	case -119, -124, -125: // not read-only, SASL needed, quota exceeded
		return refused, fmt.Errorf("%w: %s", backend.ErrDenied, serverCode(code))
	}
	return broken, err
}

// withNode adds the node and its missing permission to a refusal.
func withNode(answer, refusal error, op, path string) error {
	if answer != zk.ErrNoAuth {
		return refusal
	}
	switch op {
	case "get", "children", "check":
		return &backend.DeniedError{Path: path, Perm: "read"}
	case "set":
		return &backend.DeniedError{Path: path, Perm: "write"}
	case "create", "delete":
		parent := path[:max(1, strings.LastIndexByte(path, '/'))]
		return &backend.DeniedError{Path: parent, Perm: op}
	case "absent":
		// The answer does not say whether the creation or the deletion was refused.
		parent := path[:max(1, strings.LastIndexByte(path, '/'))]
		return &backend.DeniedError{Path: parent, Perm: "create"}
	}
	return refusal
}

// codeOf returns the code of an answer for which the zk client has no error value.
func codeOf(err error) (int, bool) {
	if err == nil {
		return 0, false
	}
	text, ok := strings.CutPrefix(err.Error(), "unknown error: ")
	if !ok {
		return 0, false
	}
	code, err := strconv.Atoi(text)
	return code, err == nil
}

// answered reports whether an error of the zk client is an answer of a server. The other
// errors say that contact broke, or that the zk client is closed.
func answered(err error) bool {
	return err != zk.ErrConnectionClosed && err != zk.ErrClosing && err != zk.ErrNoServer
}

// answerText describes an answer that no caller handles.
func answerText(err error) string {
	if code, ok := codeOf(err); ok {
		return serverCode(code)
	}
	return "server error: " + err.Error()
}

func serverCode(code int) string {
	switch code {
	case -119:
		return "the server is read-only"
	case -124:
		return "the server demands SASL"
	case -125:
		return "a quota is exceeded"
	}
	return "server error " + strconv.Itoa(code)
}

// reason strips an *Error, which names another operation, from the error.
func reason(err error) error {
	var e *backend.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// debugLog is the logger of the zk client, which is given no secrets.
type debugLog struct{ log *outbox.Logger }

func (l debugLog) Printf(format string, args ...any) {
	if !l.log.Silent() {
		l.log.Debug("coord: zk: " + fmt.Sprintf(format, args...))
	}
}
