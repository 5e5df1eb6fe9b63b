package engine

// Advert is what a node says of a log it can serve. It never says more than
// the store has committed. Its slices must not be altered.
type Advert struct {
	Log    LogID
	Tables []TableName
	// Path is the nodes the log passes on its way here, nearest first: this node,
	// its parent, ..., the origin. A node refuses an advert whose path holds it.
	Path   []string
	Oldest Position
	Head   Position
	Time   Time   // of the transaction at Head
	Order  string // of positions, as Comparators name it; empty for another
	Source string // of this node, that delivers it
	// History is that behind a log which this node mints, as Info names it; empty of others.
	History string
	// Origin is how far the log has got at its origin, as far as is known here.
	Origin Head
	// Whole is the time from which a cursor has had a part in all tables of the log:
	// an older one lacks rows of tables that came to be carried here later, and that
	// were written before. 0 where there are none.
	Whole Time
}

// Host is what serving needs of a node. An *Engine is one.
type Host interface {
	NodeID() string
	// Adverts returns the logs that are baselined and can be served, ordered by
	// origin and epoch; at most one epoch of an origin.
	Adverts() []Advert
	// Comparator returns a log's comparator; the default for an unknown log.
	Comparator(log LogID) Comparator
	// TrailIn returns the trail of a log as a view has it, from the log's oldest entry on at least.
	TrailIn(v View, log LogID) Trail
	// Trails counts the changes of trails, each before it is committed: if it is the same after a View as before an
	// older one, no trail differs between them. It is 0 if no log has or had one.
	Trails() uint64
	View() View
	// Changed returns a channel that is closed at the next commit or change of
	// the adverts.
	Changed() <-chan struct{}
	// Highest returns the highest epoch and time held of an origin, for Hello; it
	// is zero for an unknown origin.
	Highest(origin string) (Epoch, Time)
	// Witness tells the node the highest epoch and time that a peer holds of it. If
	// they are above its own, its history was lost: it takes a new epoch above
	// them before it serves its own logs again.
	Witness(peer string, e Epoch, t Time)
	// Observe has what the node stamps from now on be above a time, such as that of what it takes the place of.
	Observe(t Time)
	// Acked records how far a reader has got in a log.
	Acked(reader string, key CursorKey, at Position, durable bool)
}
