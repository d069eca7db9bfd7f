"""The demo's sentences with references, written for it; the embedded translator has not seen them."""

from __future__ import annotations

# Target language → (source, reference).
SENTENCES: dict[str, tuple[tuple[str, str], ...]] = {
    "de": (
        (
            "The children were playing in the garden when it began to rain.",
            "Die Kinder spielten im Garten, als es zu regnen begann.",
        ),
        (
            "I would like to buy two tickets to Berlin, please.",
            "Ich möchte bitte zwei Fahrkarten nach Berlin kaufen.",
        ),
        ("My sister forgot her new umbrella on the train.", "Meine Schwester hat ihren neuen Schirm im Zug vergessen."),
        ("Could you tell me where I can park my car?", "Könnten Sie mir sagen, wo ich mein Auto parken kann?"),
        ("We have been waiting for you for more than two hours.", "Wir warten seit mehr als zwei Stunden auf dich."),
        (
            "He was so tired that he fell asleep in front of the television.",
            "Er war so müde, dass er vor dem Fernseher einschlief.",
        ),
        ("Do you want to have dinner with us tomorrow?", "Willst du morgen mit uns zu Abend essen?"),
        ("She has lived in this city since she was a child.", "Sie lebt seit ihrer Kindheit in dieser Stadt."),
        (
            "If I had more money, I would buy a bigger house.",
            "Wenn ich mehr Geld hätte, würde ich ein größeres Haus kaufen.",
        ),
        (
            "Nobody knows why the teacher did not come today.",
            "Niemand weiß, warum der Lehrer heute nicht gekommen ist.",
        ),
    ),
    "en": (
        ("Morgen fahren wir mit dem ersten Zug nach Hamburg.", "Tomorrow we are taking the first train to Hamburg."),
        ("Mein Nachbar hat mir ein interessantes Buch geschenkt.", "My neighbour gave me an interesting book."),
        ("Warum hast du gestern nicht auf meinen Brief geantwortet?", "Why didn't you answer my letter yesterday?"),
        (
            "Das Wetter war so schlecht, dass wir den ganzen Tag zu Hause blieben.",
            "The weather was so bad that we stayed at home all day.",
        ),
        (
            "Meine Mutter kocht jeden Sonntag für die ganze Familie.",
            "My mother cooks for the whole family every Sunday.",
        ),
        (
            "Ich weiß nicht, ob er die Wahrheit über seine Arbeit sagt.",
            "I don't know whether he is telling the truth about his work.",
        ),
        ("Der Hund schläft am liebsten unter dem Tisch.", "The dog likes best to sleep under the table."),
        ("Kannst du mir bitte helfen, das Fenster zu öffnen?", "Can you please help me open the window?"),
        (
            "Als ich jung war, bin ich jeden Tag im Fluss geschwommen.",
            "When I was young, I swam in the river every day.",
        ),
        (
            "Sie hat vergessen, ihren Freund vom Bahnhof abzuholen.",
            "She forgot to pick up her friend from the station.",
        ),
    ),
}
