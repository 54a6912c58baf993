package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// ErrDecode: the data of a node cannot be decoded.
var ErrDecode = errors.New("cannot decode")

const (
	// MaxSites is the most sites that a transaction can have.
	MaxSites = 100

	// MaxID bounds the length of an id or of a site's name, in bytes.
	MaxID = 200

	// MaxDeadline is the end of the year 9999, in milliseconds since 1970: the latest
	// time that JSON can represent.
	MaxDeadline = 253402300799999
)

// IsID reports whether id can be the id of a transaction or the name of a site.
func IsID(id string) bool {
	return id != "" && len(id) <= MaxID && !strings.Contains(id, "/") && backend.CheckPath("/"+id) == nil
}

// Record is the data of a transaction's record.
type Record struct {
	Mark     string   `json:"mark"`
	Sites    []string `json:"sites"`
	Deadline int64    `json:"deadline"` // milliseconds since 1970, by the proposer's clock
	Keep     bool     `json:"keep,omitempty"`
	Payload  []byte   `json:"payload,omitempty"`
}

// ParseRecord decodes a record. Data in which the names are not valid names of nodes is
// ErrDecode too.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil || !r.sane() {
		return Record{}, fmt.Errorf("%w: not the record of a transaction", ErrDecode)
	}
	return r, nil
}

func (r *Record) sane() bool {
	return len(r.Mark) == GUIDLen && IsGUID(r.Mark) && len(r.Sites) <= MaxSites &&
		!slices.ContainsFunc(r.Sites, func(site string) bool { return !IsID(site) })
}

// Due returns the deadline as a time.
func (r *Record) Due() time.Time { return time.UnixMilli(min(r.Deadline, MaxDeadline)) }

// Missing returns the sites whose votes are not among names, the children of the record.
// czxid is that of the record.
func (r *Record) Missing(czxid int64, names []string) []string {
	return slices.DeleteFunc(slices.Clone(r.Sites), func(site string) bool {
		return slices.Contains(names, VoteName(czxid, site))
	})
}

// The first characters of the names of the nodes below a record.
const (
	openPrefix     = "open-"
	livePrefix     = "live-"
	votePrefix     = "yes-"
	decisionPrefix = "decision-"
)

// OpenName returns the name of the open node of the record with that mark.
func OpenName(mark string) string { return openPrefix + mark }

// LiveName returns the name of a live node.
func LiveName(guid string) string { return livePrefix + guid }

// VoteName returns the name of a site's vote below the record with that czxid.
func VoteName(czxid int64, site string) string {
	return fmt.Sprintf("%s%x-%s", votePrefix, czxid, site)
}

// DecisionName returns the name of the decision below the record with that czxid.
func DecisionName(czxid int64) string { return fmt.Sprintf("%s%x", decisionPrefix, czxid) }

// IsLive reports whether a name is that of a live node.
func IsLive(name string) bool { return strings.HasPrefix(name, livePrefix) && Speakable(name) }

// IsOfRecord reports whether a name is that of a node below a record.
func IsOfRecord(name string) bool {
	return strings.HasPrefix(name, decisionPrefix) || strings.HasPrefix(name, votePrefix) ||
		len(name) == 5+GUIDLen && (strings.HasPrefix(name, openPrefix) || IsLive(name)) && IsGUID(name[5:])
}

// Outcome is the data of the decision.
type Outcome struct {
	Commit bool   `json:"commit"`
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
}

// ParseOutcome decodes a decision. Data that does not say whether it is a commit is not
// a decision, and not an abort.
func ParseOutcome(data []byte) (o *Outcome, ok bool) {
	var x struct {
		Outcome
		Commit *bool `json:"commit"`
	}
	if err := json.Unmarshal(data, &x); err != nil || x.Commit == nil {
		return nil, false
	}
	x.Outcome.Commit = *x.Commit
	return &x.Outcome, true
}

// Encode returns the data of the decision.
func (o *Outcome) Encode() []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err) // three plain fields
	}
	return data
}

// BranchName returns the name of a site's branch for the transaction id whose record has
// that mark.
func BranchName(id, mark string) string { return id + "~" + mark }

// ParseBranch parses the name of a branch. All other names in an inbox are foreign.
func ParseBranch(name string) (id, mark string, ok bool) {
	i := len(name) - GUIDLen - 1
	if i < 1 || name[i] != '~' || !IsGUID(name[i+1:]) || !Speakable(name) {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// The votes, with which the data of a branch begins once its site has voted.
const (
	BranchYes = "yes"
	BranchNo  = "no"
)

// EncodeNo returns the data of a branch whose site votes no for a reason.
func EncodeNo(reason string) []byte { return []byte(BranchNo + "\n" + reason) }

// BranchVote returns the vote in the data of a branch.
func BranchVote(data []byte) string {
	vote, _, _ := strings.Cut(string(data), "\n")
	return vote
}

// Clip shortens a reason to a length that fits a node.
func Clip(reason string) string {
	const most = 1000
	if len(reason) > most {
		reason = reason[:most]
	}
	return strings.ToValidUTF8(reason, "?")
}
