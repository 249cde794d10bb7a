/* bench_script.h - what the customers of bench serve say: one long policy that all share, and conversations about a few
 * topics. Every customer has a name and an order number of his own, so no two conversations are the same.
 */
#ifndef DI_CLI_BENCH_SCRIPT_H
#define DI_CLI_BENCH_SCRIPT_H

enum { SCRIPT_TOPICS = 6, SCRIPT_TURNS = 4 };

static const char script_policy[] =
    "You answer customers of a shop for outdoor clothing. Be friendly and brief. Orders leave the warehouse within one "
    "working day; delivery takes two to four days inside the country and up to ten abroad. Anything unworn may be sent "
    "back within thirty days, free of charge; the refund is paid within five working days of its arrival. A damaged "
    "parcel is replaced at once: ask for a photograph. An address can be changed until the parcel has left. Never ask "
    "for a password or a card number. If you do not know something, say so and offer a call by a colleague.";

/* %s: name, %d: order number; each line takes either or both, in this order. */
static const char *const script_lines[SCRIPT_TOPICS][SCRIPT_TURNS] = {
    {"Hello, I am %s. Where is my order %d?", "It should have been here yesterday. Can you look again?",
     "Who brings the parcel, and can they leave it with a neighbour?", "Thank you. What if it is not here tomorrow?"},
    {"Hi, %s here. The boots of order %d are too small. How do I send them back?", "They were worn once, indoors only.",
     "How long does the refund take?", "Could I have the same boots one size larger instead?"},
    {"My name is %s. I gave the wrong address for order %d. Can it be changed?", "The new street is Harbour Road 12.",
     "Has it really not left yet?", "Please also change the name on the parcel to my sister's."},
    {"Good morning, %s, order %d: the parcel came wet and the jacket is torn.", "I can send a photograph. Where to?",
     "Do I have to send the torn one back?", "When will the new one be here? I leave on Friday."},
    {"%s speaking. Order %d was charged twice.", "The card statement shows both on the same day.",
     "Do you need a copy of the statement?", "How will I know that the second one was paid back?"},
    {"I am %s and would like to know whether order %d can be sent abroad.", "It would go to Lisbon.",
     "What does that cost, and is there customs to pay?", "And can I track it on the way?"},
};

static const char *const script_names[] = {"Ada",  "Bruno", "Chiara", "Dov",   "Elif",   "Farid", "Greta", "Hana",
                                           "Ilya", "Jun",   "Kofi",   "Lucia", "Mehmet", "Nora",  "Oskar", "Priya"};

#endif
